"""Waits of the host in a step: for the device, for other ranks, for the disk; and what ranks exchange."""

import threading
from typing import ClassVar

import pytest

from opsctl.trainer.errors import Refused
from tests.integration.trainer.conftest import tiny

pytest.importorskip("deepspeed")

import torch

from opsctl.trainer.batches import ReadAhead, on_device
from opsctl.trainer.process_groups import doubling_distances
from tests.support.trainer_ranks import run_ranks

pytestmark = pytest.mark.torch

PLAIN = {"layers": 2, "hidden": 32, "heads": 2, "sequence": 32}


@pytest.fixture(scope="module")
def runs(corpus, tmp_path_factory):
    """The results of rank 0 of two steps in bf16, with one data-parallel rank and with two."""
    config = tiny(steps=2, precision="bf16", model=PLAIN, data={"prefix": str(corpus)}, parallel={})
    config["batch"] = {"micro_batch": 2, "global_batch": 8}
    return [run_ranks(tmp_path_factory.mktemp("ranks"), world, config)[0] for world in (1, 2)]


def test_step_waits_for_the_device_as_rarely_as_known(runs):
    """The norm is a number; it is above the limit; then loss and norm together, for the log. None per micro-batch."""
    known = ["is_invalid_grad_norm", "clip_tensors_by_global_norm", "step"]
    assert [caller.split(":")[1] for caller in runs[0]["syncs"]] == known


def test_ranks_sum_gradients_in_fp32(runs):
    """Sums that were rounded to bf16 on the way have another norm."""
    one, two = runs
    assert two["norms"][0] == pytest.approx(one["norms"][0], rel=3e-7)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 13, 100, 1024])
def test_agreement_takes_a_logarithm_of_the_ranks(ranks):
    heard = [{rank} for rank in range(ranks)]
    for distance in doubling_distances(ranks):
        heard = [heard[rank] | heard[rank - distance] for rank in range(ranks)]
    assert all(len(known) == ranks for known in heard)
    assert 2 ** len(doubling_distances(ranks)) < 2 * ranks


class Steps:
    """Batches that record which thread read which step."""

    def __init__(self):
        self.reads = []

    def step(self, consumed, batch):
        self.reads.append((consumed, threading.current_thread() is threading.main_thread()))
        if consumed == 999:
            raise Refused("token 300")
        yield torch.tensor([consumed]), torch.tensor([batch])


def test_next_step_is_read_beside_this_one():
    steps = Steps()
    ahead = ReadAhead(steps)
    ahead.start(8, 4)
    assert list(ahead.step(8, 4)) == [(torch.tensor([8]), torch.tensor([4]))]
    assert list(ahead.step(12, 4)) == [(torch.tensor([12]), torch.tensor([4]))]  # nothing was read ahead
    assert steps.reads == [(8, False), (12, True)]


def test_other_step_than_expected_is_read_again():
    ahead = ReadAhead(Steps())
    ahead.start(8, 4)
    assert list(ahead.step(8, 6)) == [(torch.tensor([8]), torch.tensor([6]))]


def test_error_of_reading_ahead_comes_with_its_step():
    ahead = ReadAhead(Steps())
    ahead.start(999, 4)
    with pytest.raises(Refused, match="token 300"):
        ahead.step(999, 4)


class Recorded(torch.Tensor):
    """A tensor that records its moves."""

    moves: ClassVar[list[object]] = []

    def pin_memory(self):
        self.moves.append("pin")
        return self

    def to(self, device, *, non_blocking):
        self.moves.append((str(device), non_blocking))
        return self


def test_batches_reach_the_device_from_pinned_memory():
    tokens, positions, labels = (torch.full((2,), float(n)).as_subclass(Recorded) for n in range(3))
    batches = [((tokens, positions), labels)]  # positions beside the tokens
    assert list(on_device(iter(batches), torch.device("cuda", 1))) == batches
    assert Recorded.moves == ["pin", ("cuda:1", True)] * 3


def test_batches_stay_as_they_are_on_a_cpu():
    batches = [(torch.zeros(2), torch.ones(2))]
    assert list(on_device(iter(batches), torch.device("cpu"))) == batches
