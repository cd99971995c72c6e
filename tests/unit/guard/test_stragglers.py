"""Ranks that outlive a failed rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.guard.stragglers import Stragglers
from tests.support.finalized_trains import QueuedTrain


@pytest.fixture
def stragglers(train: QueuedTrain, tmp_path: Path) -> Stragglers:
    return Stragglers(first_exit=tmp_path / "first-exit", grace_s=60, clock=train.clock)


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
