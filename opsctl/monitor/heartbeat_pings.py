"""Pings of a watch cycle to the dead-man's switches: one for the site, one for each train as an option."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from opsctl.alerts import dispatch
from opsctl.alerts.channels.heartbeat_url import PingKind
from opsctl.alerts.dispatch import Alerting
from opsctl.base.findings import Finding, Level


def describe_cycle(findings: Sequence[Finding], problems: Iterable[str], seconds: float) -> str:
    """Return the text of the site's ping: the problems of the cycle and the findings that are not ok."""
    bad = [f"{finding.level.value}: {finding.summary}" for finding in findings if finding.level is not Level.OK]
    head = f"{len(findings)} findings, {len(bad)} not ok, in {seconds:.1f} s"
    return "\n".join([head, *(f"problem: {problem}" for problem in problems), *bad])


def list_train_pings(
    alerting: Alerting, trains: Iterable[str], findings: Sequence[Finding]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Return the ping of each train: fail for a critical finding, success otherwise, none without knowledge."""
    for train in trains:
        own = [finding for finding in findings if finding.train == train]
        critical = [finding.summary for finding in own if finding.level is Level.CRITICAL]
        if not own or (not critical and all(finding.level is Level.UNKNOWN for finding in own)):
            continue
        kind = PingKind.FAIL if critical else PingKind.SUCCESS
        text = "\n".join(critical or [finding.summary for finding in own])
        yield train, partial(dispatch.ping_train, alerting, train, kind, text)
