"""Make the results of a check: evidence, remedy, and `gpu=` for the UUID of the affected GPU."""

from collections.abc import Iterator
from functools import partial

from opsctl.nodes.health.node_state import CheckResult, CheckSeverity

Results = Iterator[CheckResult]

faulty = partial(CheckResult, CheckSeverity.FAULTY)
degraded = partial(CheckResult, CheckSeverity.DEGRADED)
note = partial(CheckResult, CheckSeverity.NOTE)
unknown = partial(CheckResult, CheckSeverity.UNKNOWN)
