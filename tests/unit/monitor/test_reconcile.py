"""A round over all trains."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from opsctl.errors import Unreachable
from opsctl.launch.train_arrays import TrainArrays
from opsctl.model import JobState
from opsctl.monitor.reconcile import reconcile, reconcile_root
from opsctl.state import switches
from opsctl.state.journal import EventKind
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import RequestKind, Switch, request
from opsctl.trainer.contract import TrainerStop
from tests.support.finalized_trains import World


def chain_of(world: World, run: RunDir) -> TrainArrays:
    return TrainArrays(run=run, journal=world.chain.journal.__class__(run, world.clock), scheduler=world.queue)


def test_a_round_asks_slurm_once_for_all_trains(world: World, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        RunDir(tmp_path / name).create()
        (tmp_path / name / "train.toml").write_text("[slurm]\nnodes = 1\n")
    assert reconcile_root(tmp_path, world.queue, lambda run: chain_of(world, run)) == []
    assert world.queue.calls == ["jobs"]


def test_a_round_finalizes_what_nobody_finalized(world: World, tmp_path: Path) -> None:
    world.left(world.began(), TrainerStop.FINISHED)
    [reconciled] = reconcile_root(tmp_path, world.queue, lambda run: chain_of(world, run))
    assert reconciled.done == (
        "finalized 12_1.0: finished, cancel-queued: the trainer stopped at step 40 (finished)",
    )  # fmt: skip
    assert reconcile_root(tmp_path, world.queue, lambda run: chain_of(world, run)) == []


def test_a_train_that_fails_stops_no_other(world: World, tmp_path: Path) -> None:
    world.left(world.began(), TrainerStop.DEADLINE)
    (tmp_path / "aaa").mkdir()
    (tmp_path / "aaa" / "train.toml").write_text("[guard]\nshort_attempts = 0\n")
    RunDir(tmp_path / "aaa").create()
    failed, finalized = reconcile_root(tmp_path, world.queue, lambda run: chain_of(world, run))
    assert (failed.train, "[guard]" in failed.error or "short_attempts" in failed.error) == ("aaa", True)
    assert finalized.train == "gpt" and finalized.done


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_trains_of_others_are_passed_over(world: World, tmp_path: Path) -> None:
    world.left(world.began(), TrainerStop.FINISHED)
    os.chown(world.run.path, 1234, -1)
    assert reconcile_root(tmp_path, world.queue, lambda run: chain_of(world, run)) == []


def test_a_switch_made_by_hand_is_journalled_once_and_so_is_its_end(world: World) -> None:
    switches.path_of(world.run, Switch.SAVE).touch()
    reconcile(world.chain)
    reconcile(world.chain)
    switches.disarm(world.run, Switch.SAVE)
    reconcile(world.chain)
    reconcile(world.chain)
    assert [kind for kind in world.kinds() if kind in {EventKind.ARMED, EventKind.DISARMED}] == [
        EventKind.ARMED,
        EventKind.DISARMED,
    ]


def test_a_switch_whose_reason_is_half_a_character_stops_no_round(world: World) -> None:
    switches.path_of(world.run, Switch.SAVE).write_text('{"why": "\\ud800"}')
    assert reconcile(world.chain)[0].startswith("save switch armed by")


def test_a_release_that_was_asked_for_is_carried_out_and_taken_away(world: World) -> None:
    world.chain.hold("bad loss")
    switches.arm(world.run, Switch.PAUSE, why="")
    path = request(world.run, RequestKind.RELEASE, exclude="node[001-002]")
    done = reconcile(world.chain)
    assert "released 12 without node[001-002], as" in done[-1]
    assert not any(job.is_held for job in world.queue.waiting)
    assert world.queue.excludes == {"12": "node[001-002]"}
    assert switches.read(world.run, Switch.PAUSE) is None
    assert not path.exists()
    assert world.kinds()[-1] is EventKind.REQUEST_DONE


@pytest.mark.parametrize(
    ("exclude", "why"),
    [
        ("node[001-003]", "with node[001-003] excluded 1 nodes are left, and array 12 needs 2"),
        ("node099", "no such nodes: node099"),
        ("node[", "exclude is not a node list"),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_taken_away(world: World, exclude: str, why: str) -> None:
    world.chain.hold("bad loss")
    path = request(world.run, RequestKind.RELEASE, exclude=exclude)
    [done] = reconcile(world.chain)
    assert why in done
    assert all(job.is_held for job in world.queue.waiting)
    assert not path.exists()
    assert world.chain.journal.events()[-1].kind is EventKind.REQUEST_REFUSED


def test_nothing_is_released_while_the_kill_switch_is_armed(world: World) -> None:
    world.chain.hold("bad loss")
    switches.arm(world.run, Switch.KILL, why="")
    request(world.run, RequestKind.RELEASE)
    assert "armed the kill switch" in reconcile(world.chain)[-1]
    assert all(job.is_held for job in world.queue.waiting)


@pytest.mark.parametrize("calls", range(1, 7))
def test_a_request_is_never_lost_however_far_it_came(world: World, calls: int) -> None:
    world.chain.hold("bad loss")
    path = request(world.run, RequestKind.RELEASE, exclude="node001")
    world.queue.breaks_after = len(world.queue.calls) + calls
    with pytest.raises(Unreachable):
        reconcile(world.chain)
    assert path.exists()
    world.queue.breaks_after = None
    reconcile(world.chain)
    assert not path.exists()
    assert world.kinds().count(EventKind.REQUEST_DONE) == 1
    assert not any(job.is_held for job in world.queue.waiting)


def test_a_running_train_is_left_alone(world: World) -> None:
    world.began()
    world.row((1,), JobState.RUNNING)
    assert reconcile(world.chain) == []


def test_request_by_hand_that_makes_no_sense_is_set_aside(world: World) -> None:
    (world.run.requests / "x.json").write_text(json.dumps({"verb": "rm -rf"}))
    [line] = reconcile(world.chain)
    assert line.startswith(f"set aside in {world.run.requests}: 'x.json' by ")
    assert reconcile(world.chain) == []
