"""Watchdogs: one module per watchdog, with a read-only `probe` and a pure `judge`.

A new watchdog needs a module with such a class, a line below, and a test of the fault and of the recovery.
"""

from typing import Any

from opsctl.base.ports import Watchdog
from opsctl.watchdogs.checkpoint import CheckpointAge
from opsctl.watchdogs.context import WatchContext
from opsctl.watchdogs.cron_alive import CronAlive
from opsctl.watchdogs.failures import Failures
from opsctl.watchdogs.fs_quota import FsQuota
from opsctl.watchdogs.hang import Hang
from opsctl.watchdogs.held import HeldTrain
from opsctl.watchdogs.loss import Loss
from opsctl.watchdogs.node_health import NodeHealth
from opsctl.watchdogs.own_checks import OwnChecks
from opsctl.watchdogs.slurm_status import SlurmStatus
from opsctl.watchdogs.throughput import Throughput

WATCHDOGS: dict[str, Watchdog[WatchContext, Any, Any]] = {
    "slurm_status": SlurmStatus(),
    "hang": Hang(),
    "failures": Failures(),
    "node_health": NodeHealth(),
    "held": HeldTrain(),
    "loss": Loss(),
    "throughput": Throughput(),
    "checkpoint": CheckpointAge(),
    "fs_quota": FsQuota(),
    "cron_alive": CronAlive(),
    "train_checks": OwnChecks("train_checks", "train"),
    "site_checks": OwnChecks("site_checks", "site"),
}
"""The watchdogs by name, as in `opsctl watch NAME`."""
