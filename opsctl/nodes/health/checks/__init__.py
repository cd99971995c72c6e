"""Health checks: every check is a pure function of a node's snapshot and its expected values.

To add a check: write such a function in the module of what it checks, add a line below, and add output to tests/corpus
and a test that shows the check with and without a result.
"""

from collections.abc import Callable
from itertools import chain

from opsctl.nodes.health.check_results import Results
from opsctl.nodes.health.checks.gpu_links import aer, fabric, nvlink, pcie
from opsctl.nodes.health.checks.gpu_state import (
    clocks,
    dcgm,
    ecc,
    gpus,
    persistence,
    recovery,
    remapped_rows,
    retired_pages,
    temperature,
)
from opsctl.nodes.health.checks.host import (
    clock_skew,
    host_settings,
    machine_checks,
    majority,
    memory,
    orphans,
    processes,
    versions,
)
from opsctl.nodes.health.checks.infiniband import infiniband
from opsctl.nodes.health.checks.kernel_log import kernel_log, xid
from opsctl.nodes.health.checks.storage import fio, lustre, mounts, nvme, shm
from opsctl.nodes.health.node_state import CheckInput, NodeSnapshot

Check = Callable[[NodeSnapshot, CheckInput], Results]

_ORDER: tuple[tuple[Check, ...], ...] = (
    (gpus, recovery, xid, kernel_log, ecc, remapped_rows, retired_pages, clocks, temperature),
    (nvlink, fabric, pcie, aer, orphans, persistence, shm, mounts, lustre, nvme, infiniband),
    (clock_skew, memory, majority, machine_checks, host_settings, processes, versions, dcgm, fio),
)
CHECKS: dict[str, Check] = {check.__name__: check for check in chain(*_ORDER)}
"""The checks by the name that results and settings use."""
