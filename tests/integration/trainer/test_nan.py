"""A batch whose loss is NaN: no rank takes the step, and the first faulty layer is named."""

import pytest

from tests.integration.trainer.conftest import tiny

pytest.importorskip("deepspeed")

from opsctl.trainer.contract import TrainerStop
from tests.support.cases import read_cases
from tests.support.trainer_ranks import run_ranks

pytestmark = pytest.mark.torch

MODEL = {"layers": 2, "hidden": 32, "heads": 4, "sequence": 32}


@pytest.mark.parametrize(*read_cases(__file__, "no_rank_takes_a_nan_step_and_all_name_the_layer"))
def test_no_rank_takes_a_nan_step_and_all_name_the_layer(corpus, tmp_path, precision, plant, words):
    config = tiny(steps=4, model=MODEL, precision=precision, data={"prefix": str(corpus)})
    ranks = run_ranks(tmp_path, 2, config, plant={"step": 3} | plant)
    assert len({rank["fault"] for rank in ranks}) == 1
    for rank in ranks:
        assert rank["step"] == 3
        assert rank["untouched"]
        assert rank["fault"].startswith(words)


def test_stop_reason_names_the_layer(train):
    """The first step makes the weights huge; the second step overflows."""
    run = train(**tiny(precision="bf16", optimizer={"lr": 1e30}, checkpoint={"every": 1}, parallel={"tensor": 2}))
    attempt = run.start(world=2)
    assert attempt.finish() == [1, 1], attempt.log
    stop = attempt.stop_reason
    assert stop.reason is TrainerStop.NAN
    assert stop.checkpoint_step == stop.step - 1
    assert f"at step {stop.step}; began in layer 2 (Block), out of norm1, from numbers up to 2" in stop.detail
