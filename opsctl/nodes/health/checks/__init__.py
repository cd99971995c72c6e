"""Health checks: every module is one check, a pure function of a node's snapshot and its expected values.

To add a check: write a module with such a function, add a line below, and add output to tests/corpus and a test that
shows the check with and without a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opsctl.nodes.health.checks.aer import aer
from opsctl.nodes.health.checks.clock_skew import clock_skew
from opsctl.nodes.health.checks.clocks import clocks
from opsctl.nodes.health.checks.dcgm import dcgm
from opsctl.nodes.health.checks.ecc import ecc
from opsctl.nodes.health.checks.fabric import fabric
from opsctl.nodes.health.checks.fio import fio
from opsctl.nodes.health.checks.gpus import gpus
from opsctl.nodes.health.checks.host_settings import host_settings
from opsctl.nodes.health.checks.infiniband import infiniband
from opsctl.nodes.health.checks.kernel_log import kernel_log
from opsctl.nodes.health.checks.lustre import lustre
from opsctl.nodes.health.checks.machine_checks import machine_checks
from opsctl.nodes.health.checks.majority import majority
from opsctl.nodes.health.checks.memory import memory
from opsctl.nodes.health.checks.mounts import mounts
from opsctl.nodes.health.checks.nvlink import nvlink
from opsctl.nodes.health.checks.nvme import nvme
from opsctl.nodes.health.checks.orphans import orphans
from opsctl.nodes.health.checks.pcie import pcie
from opsctl.nodes.health.checks.persistence import persistence
from opsctl.nodes.health.checks.processes import processes
from opsctl.nodes.health.checks.recovery import recovery
from opsctl.nodes.health.checks.remapped_rows import remapped_rows
from opsctl.nodes.health.checks.retired_pages import retired_pages
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
    "kernel_log": kernel_log,
    "ecc": ecc,
    "remapped_rows": remapped_rows,
    "retired_pages": retired_pages,
    "clocks": clocks,
    "temperature": temperature,
    "nvlink": nvlink,
    "fabric": fabric,
    "pcie": pcie,
    "aer": aer,
    "orphans": orphans,
    "persistence": persistence,
    "shm": shm,
    "mounts": mounts,
    "lustre": lustre,
    "nvme": nvme,
    "infiniband": infiniband,
    "clock_skew": clock_skew,
    "memory": memory,
    "majority": majority,
    "machine_checks": machine_checks,
    "host_settings": host_settings,
    "processes": processes,
    "versions": versions,
    "dcgm": dcgm,
    "fio": fio,
}
"""The checks by the name that results and settings use."""
