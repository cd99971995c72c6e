"""What a config may say, and what is refused with which words."""

import json
import tomllib

import pytest
from pydantic import ValidationError

from trainer.config import TrainerConfig, read
from trainer.layout import check_layout, layout


def config(**tables) -> TrainerConfig:
    return TrainerConfig.model_validate({"steps": 100, **tables})


def refused(**tables) -> str:
    with pytest.raises(ValidationError) as caught:
        config(**tables)
    return str(caught.value)


def test_only_steps_must_be_said():
    assert config().precision == "bf16"
    assert "steps" in refused(steps=0)


def test_frozen_as_json_it_reads_back_the_same(tmp_path):
    given = config(precision="fp32", optimizer={"lr": 1, "warmup_samples": 5})
    (tmp_path / "trainer.json").write_text(given.model_dump_json())
    assert read(tmp_path / "trainer.json") == given


def test_toml_and_json_are_read_alike():
    text = "steps = 5\n[model]\ndropout = 0\n[optimizer]\nlr = 1\n[data]\nprefix = 'a b'"
    given = tomllib.loads(text)
    assert TrainerConfig.model_validate(given) == TrainerConfig.model_validate_json(json.dumps(given))


def test_every_key_is_documented():
    def undocumented(schema):
        for name, field in schema["properties"].items():
            if "description" not in field and "$ref" not in field:
                yield f"{schema['title']}.{name}"

    schema = TrainerConfig.model_json_schema()
    assert not [name for part in (schema, *schema["$defs"].values()) for name in undocumented(part)]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"stepz": 3}, "stepz"),
        ({"model": {"width": 3}}, "width"),
        ({"steps": "100"}, "valid integer"),
        ({"precision": "fp16"}, "bf16"),
        ({"model": {"hidden": 100, "heads": 3}}, "heads = 3 does not divide hidden = 100"),
        ({"optimizer": {"lr": 1e-4, "min_lr": 1e-3}}, "min_lr = 0.001 is above lr = 0.0001"),
        ({"optimizer": {"warmup_samples": 50, "decay_samples": 50}}, "ends before warmup_samples = 50"),
        ({"optimizer": {"warmup_samples": 1600}}, "takes the whole run of 1600 samples (100 steps of 16)"),
        ({"checkpoint": {"keep_last": 1}}, "leaves nothing to fall back on"),
        (
            {"precision": "fp32", "parallel": {"zero_stage": 0}},
            "leaves the later stages out of the gradient's norm and clips wrongly, and takes a step with",
        ),
    ],
)
def test_refused(tables, words):
    assert words in refused(**tables)


@pytest.mark.parametrize(
    ("tables", "world", "problem"),
    [
        ({"parallel": {"pipeline": 2}}, 3, "pipeline = 2 does not divide the 3 processes"),
        ({"parallel": {"pipeline": 2}}, 0, "does not divide the 0 processes"),
        ({"parallel": {"pipeline": 4}}, 4, "pipeline = 4 does not divide layers + 2 = 6"),
        (
            {"parallel": {"pipeline": 6}},
            6,
            "pipeline = 6 leaves stages with nothing but the embedding",
        ),
        ({"parallel": {"pipeline": 3, "balance": "blocks"}}, 3, "pipeline = 3 does not divide layers = 4"),
        ({"parallel": {"pipeline": 2, "tensor": 2}}, 6, "pipeline = 2 x tensor = 2 does not divide the 6 processes"),
        ({"parallel": {"tensor": 8}}, 8, "tensor = 8 does not divide heads = 4: each rank takes whole heads"),
        ({"model": {"vocabulary": 257}, "parallel": {"tensor": 4}}, 4, "vocabulary = 257: each rank holds as many"),
        ({"batch": {"micro_batch": 3}}, 2, "global_batch = 16 is not a multiple of micro_batch x data-parallel ranks"),
    ],
)
def test_layout_refused(tables, world, problem):
    (found,) = check_layout(config(**tables), world)
    assert problem in found


def test_every_layout_problem_is_told_at_once():
    assert len(check_layout(config(parallel={"pipeline": 4}, batch={"micro_batch": 3}), 8)) == 2


def test_layout():
    given = config(parallel={"pipeline": 2})
    assert check_layout(given, 8) == []
    cut = layout(given, 8)
    assert (cut.pipeline, cut.data, cut.world) == (2, 4, 8)
    assert [(cut.stage(r), cut.data_rank(r)) for r in (0, 3, 4, 7)] == [(0, 0), (0, 3), (1, 0), (1, 3)]
    assert cut.accumulation(micro_batch=2, global_batch=16) == 2


def test_tensor_ranks_are_neighbours():
    given = config(parallel={"pipeline": 2, "tensor": 2})
    assert check_layout(given, 8) == []
    cut = layout(given, 8)
    assert (cut.pipeline, cut.data, cut.tensor, cut.world) == (2, 2, 2, 8)
    places = [(cut.stage(r), cut.data_rank(r), cut.tensor_rank(r)) for r in range(8)]
    assert places == [(s, d, t) for s in range(2) for d in range(2) for t in range(2)]
