"""Health checks: every module is one check, a pure function of a node's snapshot and its expected values.

To add a check: write a module with such a function, add a line below, and add output to tests/corpus and a test that
shows the check with and without a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opsctl.nodes.health.checks.clock_skew import clock_skew
from opsctl.nodes.health.checks.clocks import clocks
from opsctl.nodes.health.checks.dcgm import dcgm
from opsctl.nodes.health.checks.ecc import ecc
from opsctl.nodes.health.checks.fio import fio
from opsctl.nodes.health.checks.gpus import gpus
from opsctl.nodes.health.checks.infiniband import infiniband
from opsctl.nodes.health.checks.memory import memory
from opsctl.nodes.health.checks.mounts import mounts
from opsctl.nodes.health.checks.nvlink import nvlink
from opsctl.nodes.health.checks.orphans import orphans
from opsctl.nodes.health.checks.pcie import pcie
from opsctl.nodes.health.checks.persistence import persistence
from opsctl.nodes.health.checks.processes import processes
from opsctl.nodes.health.checks.recovery import recovery
from opsctl.nodes.health.checks.remapped_rows import remapped_rows
from opsctl.nodes.health.checks.shm import shm
from opsctl.nodes.health.checks.temperature import temperature
from opsctl.nodes.health.checks.versions import versions
from opsctl.nodes.health.checks.xid import xid
from opsctl.nodes.health.node_state import CheckInput, CheckResult, NodeSnapshot

Check = Callable[[NodeSnapshot, CheckInput], Iterator[CheckResult]]

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
    "orphans": orphans,
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
"""The checks by the name that results and settings use."""
