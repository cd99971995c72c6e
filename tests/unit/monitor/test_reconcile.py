"""Reconcile all trains of a root."""

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from opsctl.base.errors import Unreachable
from opsctl.base.model import Job, JobState
from opsctl.host.isolation import Isolation
from opsctl.host.system import SystemClock
from opsctl.launch.train_arrays import TrainArrays, TrainSnapshot
from opsctl.monitor.reconcile import reconcile, reconcile_all
from opsctl.state import switches
from opsctl.state.events import RequestDone, RequestRefused, SwitchArmed, SwitchDisarmed
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import RequestKind, Switch, request
from opsctl.trainer.contract import TrainerStop
from tests.support.cases import read_cases
from tests.support.finalized_trains import QueuedTrain
from tests.support.reconciled_roots import reconcile_root


def make_chain(train: QueuedTrain, run: RunDir) -> TrainArrays:
    return TrainArrays(run=run, journal=train.arrays.journal.__class__(run, train.clock), slurm=train.queue)


def test_reconcile_asks_slurm_once_for_all_trains(train: QueuedTrain, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        RunDir(tmp_path / name).create()
        (tmp_path / name / "train.toml").write_text("[slurm]\nnodes = 1\n")
    assert reconcile_root(tmp_path, train.queue, lambda run: make_chain(train, run)) == []
    assert train.queue.calls == ["jobs"]


def test_unfinalized_attempt_is_finalized(train: QueuedTrain, tmp_path: Path) -> None:
    train.stop_trainer(train.start_attempt(), TrainerStop.FINISHED)
    [reconciled] = reconcile_root(tmp_path, train.queue, lambda run: make_chain(train, run))
    assert reconciled.done == ("finalized 12_1.0: finished, cancel-queued: the trainer stopped at step 40 (finished)",)
    assert reconcile_root(tmp_path, train.queue, lambda run: make_chain(train, run)) == []


def test_failing_train_does_not_stop_the_others(train: QueuedTrain, tmp_path: Path) -> None:
    train.stop_trainer(train.start_attempt(), TrainerStop.DEADLINE)
    (tmp_path / "aaa").mkdir()
    (tmp_path / "aaa" / "train.toml").write_text("[guard]\nshort_attempts = 0\n")
    RunDir(tmp_path / "aaa").create()
    failed, finalized = reconcile_root(tmp_path, train.queue, lambda run: make_chain(train, run))
    assert (failed.train, "[guard]" in failed.error or "short_attempts" in failed.error) == ("aaa", True)
    assert finalized.train == "gpt" and finalized.done


def test_slow_train_does_not_delay_the_others(train: QueuedTrain, tmp_path: Path) -> None:
    train.stop_trainer(train.start_attempt(), TrainerStop.DEADLINE)
    (tmp_path / "aaa").mkdir()
    RunDir(tmp_path / "aaa").create()
    ended = threading.Event()

    class SlowTrain(TrainArrays):
        def check(self, jobs: Sequence[Job] | None = None) -> TrainSnapshot:
            ended.wait()
            return super().check(jobs)

    slow = make_chain(train, RunDir(tmp_path / "aaa"))
    slow = SlowTrain(run=slow.run, journal=slow.journal, slurm=slow.slurm)
    isolation = Isolation[tuple[str, str], Any](SystemClock(), timeout=2)
    (tmp_path / "aaa" / "train.toml").write_text("")
    for _ in range(2):
        _, failures = reconcile_all([slow, train.arrays], train.queue, train.queue.jobs(), isolation)
        assert failures == ["reconciling aaa: no answer within 2 s"]
    assert train.end(train.run.attempt("12_1.0"))["outcome"] == "deadline"
    ended.set()


@pytest.mark.root
def test_trains_of_other_users_are_skipped(train: QueuedTrain, tmp_path: Path) -> None:
    train.stop_trainer(train.start_attempt(), TrainerStop.FINISHED)
    os.chown(train.run.path, 1234, -1)
    assert reconcile_root(tmp_path, train.queue, lambda run: make_chain(train, run)) == []


def test_manual_switch_is_journalled_once(train: QueuedTrain) -> None:
    switches.path_of(train.run, Switch.SAVE).touch()
    reconcile(train.arrays)
    reconcile(train.arrays)
    switches.disarm(train.run, Switch.SAVE)
    reconcile(train.arrays)
    reconcile(train.arrays)
    assert [kind for kind in train.event_kinds() if kind in {SwitchArmed, SwitchDisarmed}] == [
        SwitchArmed,
        SwitchDisarmed,
    ]


def test_switch_with_invalid_reason_is_reported(train: QueuedTrain) -> None:
    switches.path_of(train.run, Switch.SAVE).write_text('{"why": "\\ud800"}')
    assert reconcile(train.arrays)[0].startswith("save switch armed by")


def test_release_request_is_carried_out_and_removed(train: QueuedTrain) -> None:
    train.arrays.hold(as_written("bad loss"))
    switches.arm(train.run, Switch.PAUSE, why="")
    path = request(train.run, RequestKind.RELEASE, exclude="node[001-002]")
    result = reconcile(train.arrays)
    assert "released 12 without node[001-002], as" in result[-1]
    assert not any(job.is_held for job in train.queue.waiting)
    assert train.queue.excludes == {"12": "node[001-002]"}
    assert switches.read(train.run, Switch.PAUSE) is None
    assert not path.exists()
    assert train.event_kinds()[-1] is RequestDone


@pytest.mark.parametrize(*read_cases(__file__, "impossible_request_is_refused_and_removed"))
def test_impossible_request_is_refused_and_removed(train: QueuedTrain, exclude: str, why: str) -> None:
    train.arrays.hold(as_written("bad loss"))
    path = request(train.run, RequestKind.RELEASE, exclude=exclude)
    [result] = reconcile(train.arrays)
    assert why in result
    assert all(job.is_held for job in train.queue.waiting)
    assert not path.exists()
    assert isinstance(train.arrays.journal.events()[-1], RequestRefused)


def test_armed_kill_switch_blocks_a_release(train: QueuedTrain) -> None:
    train.arrays.hold(as_written("bad loss"))
    switches.arm(train.run, Switch.KILL, why="")
    request(train.run, RequestKind.RELEASE)
    assert "armed the kill switch" in reconcile(train.arrays)[-1]
    assert all(job.is_held for job in train.queue.waiting)


@pytest.mark.parametrize("calls", range(1, 7))
def test_interrupted_request_is_not_lost(train: QueuedTrain, calls: int) -> None:
    train.arrays.hold(as_written("bad loss"))
    path = request(train.run, RequestKind.RELEASE, exclude="node001")
    train.queue.breaks_after = len(train.queue.calls) + calls
    with pytest.raises(Unreachable):
        reconcile(train.arrays)
    assert path.exists()
    train.queue.breaks_after = None
    reconcile(train.arrays)
    assert not path.exists()
    assert train.event_kinds().count(RequestDone) == 1
    assert not any(job.is_held for job in train.queue.waiting)


def test_running_train_is_left_alone(train: QueuedTrain) -> None:
    train.start_attempt()
    train.add_row((1,), JobState.RUNNING)
    assert reconcile(train.arrays) == []


def test_invalid_request_file_is_set_aside(train: QueuedTrain) -> None:
    (train.run.requests / "x.json").write_text(json.dumps({"verb": "rm -rf"}))
    [line] = reconcile(train.arrays)
    assert line.startswith(f"set aside in {train.run.requests}: 'x.json' by ")
    assert reconcile(train.arrays) == []
