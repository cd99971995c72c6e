"""A batch that gives no number: no step is taken, and the layer where it began is named."""

import re

import pytest

from tests.trainer.conftest import tiny
from trainer import manifest
from trainer.contract import Reason

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_are_those_before_the_step_and_the_layer_is_named(train, precision):
    """The first step throws the weights far out; the second overflows in them, and must leave them."""
    run = train(**tiny(precision=precision, optimizer={"lr": 1e30}, checkpoint={"every": 1}, parallel={"tensor": 2}))
    life = run.start(world=2)
    assert life.finish() == [1, 1], life.log
    left = life.stop_reason
    assert left.reason is Reason.NAN
    assert left.checkpoint_step == left.step - 1
    said = f"at step {left.step}; began in layer "
    assert said in left.detail, left.detail
    print(left.detail)
