"""A run with ramp-up, blend, skipped samples, evaluation, loss spikes and a random seed."""

import json
import re

import pytest

from opsctl.trainer import manifest
from opsctl.trainer.config_tables import BatchConfig
from opsctl.trainer.contract import Phase, TrainerStop
from tests.integration.trainer.conftest import tiny

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")

RAMP = {"micro_batch": 2, "global_batch": 16, "rampup": [4, 4, 48]}
DATA = {"held_out": 0.2, "skip_samples": ["10-13", "40-40"]}


def make_config(**changes) -> dict:
    """Return a config with all features on."""
    return tiny(
        **{
            "steps": 10,
            "seed": None,
            "batch": RAMP,
            "checkpoint": {"every": 5},
            "evaluation": {"every": 4, "batches": 2},
            "log": {"heartbeat_s": 0.1, "tensorboard": True},
        }
        | changes
    )


def add_blend(train, corpus):
    """Give the train a blend of two weighted corpora, which are the same corpus here."""
    blend = [{"prefix": str(corpus), "weight": 3.0}, {"prefix": str(corpus), "weight": 1.0}]
    train.config["data"] = {**DATA, "blend": blend}
    train.config["evaluation"] |= {"sets": [{"name": "whole", "prefix": str(corpus)}]}
    return train


@pytest.fixture(scope="session")
def whole(trains, corpus):
    """A train of ten steps on two stages in one attempt."""
    pytest.importorskip("tensorboard")
    run = add_blend(trains(**make_config()), corpus)
    assert run.start(world=2).finish() == [0, 0], run.attempts[0].log
    return run


def read_field(attempt, field):
    return {int(step): value for step, value in re.findall(rf"iteration +(\d+)/.*? {field}: +(\S+)", attempt.log)}


def read_evaluations(attempt, name=""):
    line = rf"validation loss at iteration (\d+){name and f' on {name}'} \| .*?: (\S+)"
    return {int(step): loss for step, loss in re.findall(line, attempt.log)}


def test_batch_grows_and_skipped_samples_are_counted(whole):
    sizes, consumed = (
        read_field(whole.attempts[0], "global batch size"),
        read_field(whole.attempts[0], "consumed samples"),
    )
    ramp, at = BatchConfig.model_validate(RAMP), 0
    for step in range(1, 11):
        assert int(sizes[step]) == ramp.at(at)
        at = int(consumed[step])
    assert (sizes[1], sizes[10]) == ("4", "16")
    assert at == sum(map(int, sizes.values())) + 5


def test_evaluation_is_logged_and_falls(whole):
    losses = read_evaluations(whole.attempts[0])
    assert list(losses) == [4, 8]
    assert float(losses[8]) < float(losses[4])
    lines = (whole.run_dir / "metrics" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows if "held_out_loss" in row] == [4, 8]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 11))
    assert list((whole.run_dir / "metrics" / "tensorboard").iterdir())


def test_every_evaluation_set_has_a_loss_of_its_own(whole):
    logged = read_evaluations(whole.attempts[0], "whole")
    assert list(logged) == [4, 8]
    assert logged != read_evaluations(whole.attempts[0])
    lines = (whole.run_dir / "metrics" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "evaluation_set" in row]
    assert [(row["evaluation_set"], row["step"], f"{row['evaluation_loss']:.6E}") for row in rows] == [
        ("whole", 4, logged[4]),
        ("whole", 8, logged[8]),
    ]


def test_missing_seed_is_drawn_logged_and_saved(whole):
    (seed,) = re.findall(r"^seed (\d+), drawn at random$", whole.attempts[0].log, re.MULTILINE)
    assert manifest.read_manifest(whole.checkpoints / "step-0000010").seed == int(seed)


def test_resume_within_the_ramp_changes_nothing(whole, train, corpus):
    """The checkpoint holds the seed, and the batch size follows from the consumed samples."""
    run = add_blend(train(**make_config()), corpus)
    run.adopt(whole)
    manifest.remove(run.checkpoints / "step-0000010")
    attempt = run.start(world=2)
    assert attempt.finish() == [0, 0], attempt.log
    assert attempt.losses == {step: loss for step, loss in whole.attempts[0].losses.items() if step > 5}
    for name in ("", "whole"):
        assert read_evaluations(attempt, name) == {8: read_evaluations(whole.attempts[0], name)[8]}
    resumed, reference = (manifest.read_manifest(train.checkpoints / "step-0000010") for train in (run, whole))
    assert resumed.files == reference.files
    assert resumed.consumed_samples == reference.consumed_samples


def test_spikes_are_noted_and_pause_stops_an_evaluation(train):
    """A far too high learning rate makes the loss jump; the pause switch ends an evaluation of many minutes."""
    run = train(
        **tiny(
            steps=400,
            spike={"window": 10, "deviations": 0.5, "keep": 1},
            optimizer={"lr": 6.0, "warmup_samples": 1600, "clip": 0},
            evaluation={"every": 40, "batches": 10**6},
            checkpoint={"every": 0},
            model={"layers": 2, "hidden": 32, "heads": 2, "sequence": 32},
        )
    )
    run.config["data"] = run.config["data"] | {"held_out": 0.2}
    attempt = run.start(world=2)
    attempt.wait_for_step(40)
    attempt.wait_for(lambda: attempt.heartbeat("train").phase is Phase.EVAL, "the evaluation")
    run.arm("pause")
    assert attempt.finish() == [0, 0], attempt.log
    assert attempt.stop_reason.reason is TrainerStop.PAUSE
    assert read_evaluations(attempt) == {}
    spike_notes = [note for note in attempt.stop_reason.notes if "loss spike" in note]
    assert len(spike_notes) > 1
    step = int(re.match(r"step (\d+): loss spike: ", spike_notes[-1])[1])
    (keep_file,) = run.checkpoints.glob(f"*/{manifest.KEEP}")
    assert keep_file.parent.name == manifest.directory_name(step)
    assert manifest.read_keep(keep_file.parent)["by"] == "loss spike"
