"""Reconciling all trains under a real Slurm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.base.errors import Unreachable
from opsctl.host.system import SystemClock, SystemRunner, user_name
from opsctl.launch.train_arrays import TrainArrays
from opsctl.monitor.reconcile import ReconciledTrain
from opsctl.sandbox.cluster import Sandbox
from opsctl.slurm.commands import Slurm
from opsctl.state import switches
from opsctl.state.events import RequestDone
from opsctl.state.journal import Journal
from opsctl.state.switches import RequestKind, Switch
from tests.support.guarded_trains import GuardedTrain
from tests.support.reconciled_roots import reconcile_root

FINISHED = """echo '{"reason": "finished", "step": 40, "at": 1.0}' >"$TRAIN_STOP_REASON" """


@pytest.fixture
def train(tmp_path: Path, slurm: Sandbox) -> Iterator[GuardedTrain]:
    train = GuardedTrain(tmp_path, slurm)
    yield train
    train.clear()


def reconcile(train: GuardedTrain, slurm: Slurm | None = None) -> list[ReconciledTrain]:
    reader = slurm or train.slurm
    return reconcile_root(
        train.path, reader, lambda run: TrainArrays(run=run, journal=Journal(run, SystemClock()), slurm=reader)
    )


def test_reconcile_finalizes_attempt_without_a_guard(train: GuardedTrain) -> None:
    array = train.submit(FINISHED, python="/nowhere/python")
    train.wait()
    assert not train.attempt().end.exists()
    text = f"finalized {array}_1.0: finished, cancel-queued: the trainer stopped at step 40 (finished)"
    assert reconcile(train) == [ReconciledTrain(train="gpt", done=(text,))]
    assert reconcile(train) == []


def test_reconcile_carries_out_requested_release(train: GuardedTrain) -> None:
    switches.arm(train.run, Switch.PAUSE, why="")
    train.submit("exit 0", tasks=2)
    train.wait()
    assert [job.is_held for job in train.waiting] == [True]
    switches.request(train.run, RequestKind.RELEASE)
    [reconciled] = reconcile(train)
    assert reconciled.error == ""
    train.wait()
    assert train.waiting == []
    assert [event.by for event in train.events(RequestDone)] == [user_name(train.run.path.stat().st_uid)]


def test_reconcile_without_slurm_changes_nothing(train: GuardedTrain, tmp_path: Path) -> None:
    attempt = train.run.attempt("1_1.0")
    attempt.path.mkdir()
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\nAuthType=auth/none\nMessageTimeout=1\n"
    )
    with pytest.raises(Unreachable):
        reconcile(train, Slurm(SystemRunner(env={"SLURM_CONF": str(conf)})))
    assert not attempt.end.exists()
