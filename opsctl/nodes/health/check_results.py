"""Make the results of a check: evidence, remedy, and `gpu=` for the UUID of the affected GPU."""

from collections.abc import Iterator
from functools import partial

from opsctl.nodes.health.node_state import CheckResult, Severity

Results = Iterator[CheckResult]

faulty = partial(CheckResult, Severity.FAULTY)
degraded = partial(CheckResult, Severity.DEGRADED)
note = partial(CheckResult, Severity.NOTE)
unknown = partial(CheckResult, Severity.UNKNOWN)
