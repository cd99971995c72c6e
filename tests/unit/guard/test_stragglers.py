"""What outlives a rank that failed, and for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.guard.stragglers import Stragglers
from tests.support.finalized_trains import World


@pytest.fixture
def stragglers(world: World, tmp_path: Path) -> Stragglers:
    return Stragglers(first_exit=tmp_path / "first-exit", grace_s=60, clock=world.clock)


def test_nothing_is_late_while_no_rank_has_failed(world: World, stragglers: Stragglers) -> None:
    world.clock.sleep(3600)
    assert (stragglers.are_late(), stragglers.code) == (False, None)


def test_the_others_have_their_grace_from_when_the_failure_was_seen(world: World, stragglers: Stragglers) -> None:
    stragglers.first_exit.write_text("85\n")
    assert not stragglers.are_late()
    world.clock.sleep(59)
    assert not stragglers.are_late()
    world.clock.sleep(2)
    assert (stragglers.are_late(), stragglers.code) == (True, 85)


def test_a_failure_that_the_body_takes_away_as_an_earlier_ones_does_not_count(
    world: World, stragglers: Stragglers
) -> None:
    stragglers.first_exit.write_text("1\n")
    stragglers.are_late()
    stragglers.first_exit.unlink()
    world.clock.sleep(61)
    assert not stragglers.are_late()
    stragglers.first_exit.write_text("1\n")
    assert not stragglers.are_late()


def test_a_file_that_is_still_being_written_is_no_failure_yet(stragglers: Stragglers) -> None:
    stragglers.first_exit.write_text("")
    assert not stragglers.are_late()
