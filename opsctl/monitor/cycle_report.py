"""The result of a watch cycle, and its lines in the debug log."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from opsctl.alerts.outbox import Delivery
from opsctl.base.findings import Finding, Transition
from opsctl.monitor.reconcile import ReconciledTrain

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    findings: tuple[Finding, ...]
    reconciled: tuple[ReconciledTrain, ...] = ()
    transitions: tuple[Transition, ...] = ()
    """The transitions of which people are notified."""
    deliveries: tuple[Delivery, ...] = ()
    problems: tuple[str, ...] = ()
    """Failures of the cycle itself."""
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class CycleProblems:
    """Failures of a cycle itself so far."""

    lines: list[str] = field(default_factory=list)
    is_complete: bool = True
    """Whether every step of the cycle has worked so far."""

    def fail(self, line: str) -> None:
        """Report a step that did not work."""
        self.lines.append(line)
        self.is_complete = False


def log_report(report: CycleReport, *, trains: int) -> None:
    for transition in report.transitions:
        finding = transition.finding
        log.info("%s: %s -> %s: %s", finding.key, transition.before.value, finding.severity.value, finding.summary)
    log_deliveries(report.deliveries)
    for problem in report.problems:
        log.warning(problem)
    text = "cycle of %d trains: %d findings, %d transitions, %d deliveries in %.2f s"
    log.info(text, trains, len(report.findings), len(report.transitions), len(report.deliveries), report.seconds)


def log_deliveries(deliveries: Iterable[Delivery]) -> None:
    for delivery in deliveries:
        item = delivery.item
        if delivery.error is None:
            log.info("delivered by %s: %s", item.channel, item.message.subject)
            continue
        again = "not tried again" if delivery.error.is_permanent else "tried again later"
        log.warning("not delivered by %s, %s: %s", item.channel, again, delivery.error.message)
