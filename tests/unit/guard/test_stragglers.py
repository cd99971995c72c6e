"""Ranks that outlive a failed rank."""

import threading
from pathlib import Path

import pytest

from opsctl.guard.lost_node import Stragglers
from tests.support.finalized_trains import QueuedTrain


@pytest.fixture
def stragglers(train: QueuedTrain, tmp_path: Path) -> Stragglers:
    return make_stragglers(train, tmp_path, misses_a_node=False)


def make_stragglers(train: QueuedTrain, path: Path, *, misses_a_node: bool) -> Stragglers:
    return Stragglers(
        first_exit=path / "first-exit",
        grace_s=60,
        clock=train.clock,
        find_missing_nodes=lambda: ("node002",) * misses_a_node,
    )


def end_probe(stragglers: Stragglers) -> None:
    """Start the probe, and wait until it has ended."""
    stragglers.are_late()
    assert stragglers._thread is not None
    stragglers._thread.join(250)


@pytest.mark.parametrize("misses_a_node", [True, False])
def test_ranks_on_a_node_that_does_not_answer_get_no_grace(
    train: QueuedTrain, tmp_path: Path, misses_a_node: bool
) -> None:
    stragglers = make_stragglers(train, tmp_path, misses_a_node=misses_a_node)
    stragglers.first_exit.write_text("1\n")
    assert not stragglers.are_late()
    train.clock.sleep(6)
    end_probe(stragglers)
    assert stragglers.are_late() is misses_a_node


def test_short_grace_waits_for_the_probe(train: QueuedTrain, tmp_path: Path) -> None:
    answer = threading.Event()
    stragglers = make_stragglers(train, tmp_path, misses_a_node=False)
    stragglers.grace_s, stragglers.find_missing_nodes = 1, lambda: ("node002",) * answer.wait(250)
    stragglers.first_exit.write_text("1\n")
    stragglers.are_late()
    for seconds, is_late in ((2, False), (5, False), (2, True)):
        train.clock.sleep(seconds)
        assert stragglers.are_late() is is_late
    answer.set()
    end_probe(stragglers)
    assert stragglers.lost_nodes == ("node002",)


def test_later_failure_is_probed_anew(train: QueuedTrain, tmp_path: Path) -> None:
    stragglers = make_stragglers(train, tmp_path, misses_a_node=True)
    for _ in range(2):
        stragglers.first_exit.write_text("1\n")
        assert not stragglers.are_late()
        train.clock.sleep(6)
        end_probe(stragglers)
        assert stragglers.are_late()
        stragglers.first_exit.unlink()  # the body starts the ranks again
        assert not stragglers.are_late()


def test_no_rank_is_late_before_a_failure(train: QueuedTrain, stragglers: Stragglers) -> None:
    train.clock.sleep(3600)
    assert (stragglers.are_late(), stragglers.code) == (False, None)


def test_grace_starts_when_the_failure_is_detected(train: QueuedTrain, stragglers: Stragglers) -> None:
    stragglers.first_exit.write_text("85\n")
    assert not stragglers.are_late()
    train.clock.sleep(59)
    assert not stragglers.are_late()
    train.clock.sleep(2)
    assert (stragglers.are_late(), stragglers.code) == (True, 85)


def test_failure_removed_by_the_body_does_not_count(train: QueuedTrain, stragglers: Stragglers) -> None:
    stragglers.first_exit.write_text("1\n")
    stragglers.are_late()
    stragglers.first_exit.unlink()
    train.clock.sleep(61)
    assert not stragglers.are_late()
    stragglers.first_exit.write_text("1\n")
    assert not stragglers.are_late()


def test_empty_file_is_no_failure_yet(stragglers: Stragglers) -> None:
    stragglers.first_exit.write_text("")
    assert not stragglers.are_late()
