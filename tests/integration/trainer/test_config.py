"""Valid and refused trainer configs, and the messages of refusals."""

import itertools
import json
import tomllib

import pytest
from pydantic import ValidationError

from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.config_problems import join_problems
from opsctl.trainer.rank_layout import check_layout, layout
from tests.support.cases import read_cases, read_table


def make_config(**tables) -> TrainerConfig:
    return TrainerConfig.model_validate({"steps": 100, **tables})


def read_refusal(**tables) -> str:
    with pytest.raises(ValidationError) as caught:
        make_config(**tables)
    return str(caught.value)


def test_only_steps_is_required():
    assert make_config().precision == "auto"
    assert "steps" in read_refusal(steps=0)


def test_config_reads_back_from_json(tmp_path):
    config = make_config(precision="fp32", optimizer={"lr": 1, "warmup_samples": 5})
    (tmp_path / "trainer.json").write_text(config.model_dump_json())
    assert TrainerConfig.model_validate_json((tmp_path / "trainer.json").read_text()) == config


def test_toml_and_json_are_read_alike():
    text = "steps = 5\n[model]\ndropout = 0\n[optimizer]\nlr = 1\n[data]\nprefix = 'a b'\n[parallel]\nzero_stage = 1"
    fields = tomllib.loads(text)
    assert TrainerConfig.model_validate(fields) == TrainerConfig.model_validate_json(json.dumps(fields))


def test_every_key_is_documented():
    def undocumented(schema):
        for name, field in schema["properties"].items():
            if "description" not in field and "$ref" not in field:
                yield f"{schema['title']}.{name}"

    schema = TrainerConfig.model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        assert list(undocumented(part)) == []


@pytest.mark.parametrize(*read_cases(__file__, "invalid_config_is_refused"))
def test_invalid_config_is_refused(tables, words):
    assert words in read_refusal(**tables)


def test_problems_between_tables_are_reported_together():
    text = read_refusal(
        parallel={"sequence_parallel": True}, optimizer={"warmup_samples": 1600}, evaluation={"every": 1}
    )
    for words in ("tensor = 1 has none", "takes the whole run", "has no data to evaluate: data.held_out is 0"):
        assert words in text


def test_unknown_key_lists_known_keys():
    with pytest.raises(ValidationError) as caught:
        make_config(
            stepz=1,
            model={"layerz": 2},
            data={"blend": [{"prefix": "x", "wait": 3, "q": 1}], "stages": [{"from_sampel": 1}]},
            seed=-1,
        )
    assert join_problems(TrainerConfig, caught.value).split("; ") == read_table(__file__, "unknown_keys")["told"]


@pytest.mark.parametrize(*read_cases(__file__, "invalid_layout_is_refused"))
def test_invalid_layout_is_refused(tables, world, problem):
    (text,) = check_layout(make_config(**tables), world)
    assert problem in text


def test_layout_problems_are_reported_together():
    assert len(check_layout(make_config(parallel={"pipeline": 4}, batch={"micro_batch": 3}), 8)) == 2


def test_layout():
    config = make_config(parallel={"pipeline": 2})
    assert check_layout(config, 8) == []
    cut = layout(config, 8)
    assert (cut.pipeline, cut.data, cut.world) == (2, 4, 8)
    assert [(cut.stage(r), cut.data_rank(r)) for r in (0, 3, 4, 7)] == [(0, 0), (0, 3), (1, 0), (1, 3)]
    assert cut.accumulation(micro_batch=2, global_batch=16) == 2


def test_tensor_ranks_are_neighbours():
    config = make_config(parallel={"pipeline": 2, "tensor": 2})
    assert check_layout(config, 8) == []
    cut = layout(config, 8)
    assert (cut.pipeline, cut.data, cut.tensor, cut.world) == (2, 2, 2, 8)
    places = [(cut.stage(r), cut.data_rank(r), cut.tensor_rank(r)) for r in range(8)]
    assert places == list(itertools.product(range(2), repeat=3))
