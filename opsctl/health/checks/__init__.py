"""Node-health checks: one file each, a pure function of what was seen and what it is held against.

To add one: a file with such a function, a line below, outputs in tests/corpus and a test that shows it both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opsctl.health.checks.clock_skew import clock_skew
from opsctl.health.checks.clocks import clocks
from opsctl.health.checks.dcgm import dcgm
from opsctl.health.checks.ecc import ecc
from opsctl.health.checks.fio import fio
from opsctl.health.checks.ghosts import ghosts
from opsctl.health.checks.gpus import gpus
from opsctl.health.checks.infiniband import infiniband
from opsctl.health.checks.memory import memory
from opsctl.health.checks.mounts import mounts
from opsctl.health.checks.nvlink import nvlink
from opsctl.health.checks.pcie import pcie
from opsctl.health.checks.persistence import persistence
from opsctl.health.checks.processes import processes
from opsctl.health.checks.recovery import recovery
from opsctl.health.checks.remapped_rows import remapped_rows
from opsctl.health.checks.shm import shm
from opsctl.health.checks.temperature import temperature
from opsctl.health.checks.versions import versions
from opsctl.health.checks.xid import xid
from opsctl.health.model import Given, Result, Snapshot

Check = Callable[[Snapshot, Given], Iterator[Result]]

CHECKS: dict[str, Check] = {
    "gpus": gpus,
    "recovery": recovery,
    "xid": xid,
    "ecc": ecc,
    "remapped_rows": remapped_rows,
    "clocks": clocks,
    "temperature": temperature,
    "nvlink": nvlink,
    "pcie": pcie,
    "ghosts": ghosts,
    "persistence": persistence,
    "shm": shm,
    "mounts": mounts,
    "infiniband": infiniband,
    "clock_skew": clock_skew,
    "memory": memory,
    "processes": processes,
    "versions": versions,
    "dcgm": dcgm,
    "fio": fio,
}
"""By name, as results and settings call them."""
