"""Findings that follow from another one: of a crashed node under two trains, people get one alert.

A finding that follows is withheld like a silenced one: sent later if the cause ends and the finding does not. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from opsctl.alerts import routes
from opsctl.alerts.ledger_state import SEVERITY, LedgerEntry
from opsctl.base.findings import Finding, Level
from opsctl.base.nodesets import expand
from opsctl.settings.alerts import AlertSettings

FOLLOWS_FOR = timedelta(hours=1)
"""A train that still hangs this long after its node failed gets an alert of its own."""
CONSEQUENCES = frozenset({"hang", "throughput"})
"""Watchdogs whose findings follow from a critical node of the train."""


def find_causes(
    findings: Mapping[str, Finding], entries: Mapping[str, LedgerEntry], rules: AlertSettings, now: datetime
) -> dict[str, str]:
    """Return the key of the cause by the key of each finding that follows from another finding or open alert."""
    open_findings = {
        key: entry.finding for key, entry in entries.items() if entry.level is not Level.OK and entry.finding
    }
    current = {key: finding for key, finding in {**open_findings, **findings}.items() if finding.level is not Level.OK}
    groups: dict[str, list[Finding]] = {}
    for finding in current.values():
        for node in _nodes_at_fault(finding):
            groups.setdefault(node, []).append(finding)
    causes: dict[str, str] = {}
    for group in groups.values():
        cause = min(group, key=lambda finding: _rank(finding, entries.get(finding.key), now))
        followers = [finding for finding in group if finding.key != cause.key]
        if _is_new_and_critical(cause, entries.get(cause.key), now):
            trains = {finding.train for finding in group}
            followers += [
                finding
                for finding in current.values()
                if finding.train in trains and _watchdog(finding) in CONSEQUENCES
            ]
        reached = routes.channels_of(cause, rules)
        for finding in followers:
            if finding.key in findings and routes.channels_of(finding, rules) <= reached:
                causes.setdefault(finding.key, cause.key)
    return {key: cause for key, cause in causes.items() if cause not in causes}


def name_followers(findings: Mapping[str, Finding], causes: Mapping[str, str]) -> dict[str, Finding]:
    """Return the findings; a cause also names the other trains that suffer."""
    named = dict(findings)
    for key in set(causes.values()) & set(findings):
        followers = (findings[follower].train for follower, cause in causes.items() if cause == key)
        trains = sorted(set(followers) - {findings[key].train, ""})
        if trains:
            named[key] = replace(findings[key], also_hit=tuple(trains))
    return named


def _nodes_at_fault(finding: Finding) -> Iterable[str]:
    """Return the nodes that the finding is about; none for a train that a person must release."""
    watchdog = _watchdog(finding)
    if watchdog == "node_health" or (watchdog == "failures" and finding.level is Level.WARNING):
        return expand(finding.node) if finding.node else ()
    return ()


def _rank(finding: Finding, entry: LedgerEntry | None, now: datetime) -> tuple[bool, datetime, int, bool, str]:
    """Return the order of causes: the oldest open alert, then the worst, then what Slurm says about the node."""
    is_open = entry is not None and entry.level is not Level.OK and not entry.follows
    opened = entry.opened if is_open and entry and entry.opened else now
    return not is_open, opened, -SEVERITY[finding.level], _watchdog(finding) != "node_health", finding.key


def _is_new_and_critical(cause: Finding, entry: LedgerEntry | None, now: datetime) -> bool:
    opened = entry.opened if entry and entry.level is not Level.OK and entry.opened else now
    return cause.level is Level.CRITICAL and now - opened < FOLLOWS_FOR


def _watchdog(finding: Finding) -> str:
    return finding.key.partition("/")[0]
