"""Watchdogs: one module per watchdog, with a read-only `probe` and a pure `judge`.

A new watchdog needs a module with such a class, a line below, and a test of the fault and of the recovery.
"""

from itertools import chain
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

_ALL: tuple[tuple[Watchdog[WatchContext, Any, Any], ...], ...] = (
    (SlurmStatus(), Hang(), Failures(), NodeHealth(), HeldTrain(), Loss(), Throughput(), CheckpointAge(), FsQuota()),
    (CronAlive(), OwnChecks("train_checks", "train"), OwnChecks("site_checks", "site")),
)
WATCHDOGS = {watchdog.name: watchdog for watchdog in chain(*_ALL)}
"""The watchdogs by name, as in `opsctl watch NAME`."""
