"""Reconcile every train of a root, as a watch cycle does for its owner."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsctl.host.isolation import Isolation
from opsctl.host.system import SystemClock
from opsctl.launch.train_arrays import TrainArrays
from opsctl.monitor.reconcile import ReconciledTrain, reconcile_all
from opsctl.slurm.commands import Slurm
from opsctl.state.run_dir import RunDir, all_trains, may_act


def reconcile_root(root: Path, slurm: Slurm, chain_of: Callable[[RunDir], TrainArrays]) -> list[ReconciledTrain]:
    """Reconcile every train of this user below `root`. Raises Unreachable."""
    trains = [run for run in all_trains(root) if may_act(run)]
    isolation = Isolation[tuple[str, str], Any](SystemClock(), timeout=250)
    jobs = slurm.jobs() if trains else []
    reconciled, failures = reconcile_all([chain_of(run) for run in trains], slurm, jobs, isolation)
    assert not failures
    return reconciled
