"""Decide whether a finding is a transition. Pure: a function of the ledger entry, the finding and the time.

A worse severity counts after several cycles, except a critical one. A better severity counts at once, unless the
problem keeps coming back. UNKNOWN resolves nothing, and becomes a transition only when it lasts. A finding that follows
from another one, such as of a crashed node under two trains, is withheld like a silenced one: sent later if the cause
ends and the finding does not.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

from opsctl.alerts import routes
from opsctl.alerts.ledger_state import AlertTransition, LedgerEntry
from opsctl.base.findings import Finding, Severity, Transition
from opsctl.base.nodesets import expand
from opsctl.base.statements import state
from opsctl.settings.alerts import AlertSettings

SITE_ROOT, SITE_FILES, SITE_ANSWERS = "root/site", "files/site", "answers/site"
SITE_SLURM = "slurm/site"
"""Key of the finding that Slurm does not answer: while it is unknown, no train is watched."""
MAX_CONFIRM_CYCLES = 16
"""Consecutive better cycles that always resolve an alert, however often the problem came back before."""
FOLLOWS_FOR = timedelta(hours=1)
"""A train that still hangs this long after its node failed gets an alert of its own."""
CONSEQUENCES = frozenset({"hang", "throughput"})
"""Watchdogs whose findings follow from a critical node of the train."""


def next_entry(
    entry: LedgerEntry | None,
    finding: Finding,
    now: datetime,
    rules: AlertSettings,
    *,
    is_silenced: bool = False,
    observed_at: datetime | None = None,
    is_late: bool = False,
) -> tuple[LedgerEntry, AlertTransition | None]:
    """Return the new ledger entry, and the transition if there is one. A silence postpones transitions.

    A better finding that was observed before the alert, such as by a slow cycle, resolves nothing; a worse one that was
    observed before the improvement reopens nothing. `is_late`: whatever the clocks say, the cycle of the finding began
    before the entry's severity changed.
    """
    observed_at = min(observed_at or now, now)
    if entry is None:
        entry = LedgerEntry(key=finding.key, since=now, latest_severity=finding.severity, checked_at=now)
    change = finding.severity.rank - entry.severity.rank
    is_outdated = (is_late or observed_at < entry.since) and (change < 0 or (change > 0 and entry.has_improved))
    entry = replace(_clamp_times(entry, now), latest_severity=finding.severity, checked_at=now)
    if is_outdated:
        # Observed before the alert or its end, or by a clock behind the one of the alert: the next cycle decides.
        return replace(entry, since=min(observed_at, entry.since)), None
    if finding.severity is entry.severity:
        entry = replace(entry, finding=finding, unconfirmed_cycles=0, unconfirmed_since=None)
        return _repeat(entry, finding, now, rules, is_silenced=is_silenced)
    if finding.severity is Severity.UNKNOWN and entry.finding and entry.is_open:
        unknown = state("site.now_unknown", finding.says)
        blind = replace(entry.finding, details=(*entry.finding.details, unknown))
        return _repeat(entry, blind, now, rules, is_silenced=is_silenced)
    entry = _count_cycle(entry, finding.severity, now)
    if is_silenced or not (finding.is_certain or _is_confirmed(entry, finding.severity, now, rules)):
        return entry, None
    return _change_severity(entry, finding, now, rules)


def _clamp_times(entry: LedgerEntry, now: datetime) -> LedgerEntry:
    """Move future times to `now`: the clock of the host that wrote the entry may be ahead."""
    names = ("since", "checked_at", "unconfirmed_since", "opened", "notified_at")
    times = {name: getattr(entry, name) for name in names}
    return replace(entry, **{name: min(time, now) for name, time in times.items() if time})


def _count_cycle(entry: LedgerEntry, severity: Severity, now: datetime) -> LedgerEntry:
    is_worse = severity.rank > entry.severity.rank
    is_continued = entry.unconfirmed_since is not None and entry.unconfirmed_is_worse is is_worse
    return replace(
        entry,
        unconfirmed_is_worse=is_worse,
        unconfirmed_since=entry.unconfirmed_since if is_continued else now,
        unconfirmed_cycles=(entry.unconfirmed_cycles if is_continued else 0) + (severity is not Severity.UNKNOWN),
    )


def _is_confirmed(entry: LedgerEntry, severity: Severity, now: datetime, rules: AlertSettings) -> bool:
    age_s = (now - (entry.unconfirmed_since or now)).total_seconds()
    if not entry.unconfirmed_is_worse:
        return entry.unconfirmed_cycles >= min(1 << entry.flaps, MAX_CONFIRM_CYCLES)
    if severity is Severity.UNKNOWN:
        minutes = rules.slurm_minutes if entry.key == SITE_SLURM else rules.unknown_minutes
        return age_s >= minutes * 60
    if severity is Severity.CRITICAL:
        return entry.unconfirmed_cycles >= rules.critical_looks
    return entry.unconfirmed_cycles >= rules.warning_looks and age_s >= rules.hold_seconds


def _change_severity(
    entry: LedgerEntry, finding: Finding, now: datetime, rules: AlertSettings
) -> tuple[LedgerEntry, AlertTransition]:
    is_worse = entry.unconfirmed_is_worse
    is_flap = is_worse and entry.has_improved and now - entry.since <= timedelta(minutes=rules.flap_minutes)
    if not entry.is_open and not is_flap:
        entry = replace(entry, incident=uuid.uuid4().hex[:12], opened=now, notified=0, flaps=0)
    new_entry = replace(
        entry,
        severity=finding.severity,
        since=now,
        finding=finding,
        unconfirmed_cycles=0,
        unconfirmed_since=None,
        notified=entry.notified + 1,
        notified_at=now,
        repeats=0,
        has_improved=not is_worse,
        flaps=entry.flaps + is_flap,
        escalated=0,
        acknowledged=None if is_worse or finding.is_ok else entry.acknowledged,
    )
    return new_entry, _make_transition(new_entry, finding, before=entry, now=now)


def _repeat(
    entry: LedgerEntry, finding: Finding, now: datetime, rules: AlertSettings, *, is_silenced: bool
) -> tuple[LedgerEntry, AlertTransition | None]:
    """Repeat an open alert at the growing intervals of its severity."""
    intervals = {Severity.CRITICAL: rules.repeat_hours, Severity.WARNING: rules.repeat_warning_hours}.get(
        entry.severity
    )
    if not intervals or entry.notified_at is None or is_silenced or entry.acknowledged:
        return entry, None
    hours = intervals[min(entry.repeats, len(intervals) - 1)]
    if now - entry.notified_at < timedelta(hours=hours):
        return entry, None
    new_entry = replace(entry, notified=entry.notified + 1, notified_at=now, repeats=entry.repeats + 1)
    return new_entry, _make_transition(new_entry, finding, before=entry, now=now)


def _make_transition(entry: LedgerEntry, finding: Finding, *, before: LedgerEntry, now: datetime) -> AlertTransition:
    transition = Transition(id=f"{entry.incident}.{entry.notified}", finding=finding, before=before.severity, at=now)
    was = before.finding.says if before.finding else None
    return AlertTransition(transition=transition, opened=entry.opened or now, was=was)


def escalate(entry: LedgerEntry, now: datetime, rules: AlertSettings) -> tuple[LedgerEntry, AlertTransition | None]:
    """Return the entry, and the transition for the channels of every escalation step that is due."""
    if not entry.is_open or entry.acknowledged or entry.finding is None or not entry.notified:
        return entry, None
    steps = [step for step in rules.escalation if Severity(step.severity).rank <= entry.severity.rank]
    steps = sorted(steps, key=lambda step: step.after_minutes)
    due = [step for step in steps[entry.escalated :] if now - entry.since >= timedelta(minutes=step.after_minutes)]
    if not due:
        return entry, None
    new_entry = replace(entry, escalated=entry.escalated + len(due), notified=entry.notified + 1)
    channels = tuple(dict.fromkeys(chain.from_iterable(step.channels for step in due)))
    return new_entry, replace(_make_transition(new_entry, entry.finding, before=entry, now=now), to=channels)


def find_causes(
    findings: Mapping[str, Finding], entries: Mapping[str, LedgerEntry], rules: AlertSettings, now: datetime
) -> dict[str, str]:
    """Return the key of the cause by the key of each finding that follows from another finding or open alert."""
    open_findings = {key: entry.finding for key, entry in entries.items() if entry.is_open and entry.finding}
    current = {key: finding for key, finding in {**open_findings, **findings}.items() if not finding.is_ok}
    groups: dict[str, list[Finding]] = {}
    for finding in current.values():
        for node in _nodes_at_fault(finding):
            groups.setdefault(node, []).append(finding)
    causes: dict[str, str] = {}
    for group in groups.values():
        cause = min(group, key=lambda finding: _rank(finding, entries.get(finding.key), now))
        followers = [finding for finding in group if finding.key != cause.key]
        entry = entries.get(cause.key)
        opened = entry.opened if entry and entry.is_open and entry.opened else now
        if cause.severity is Severity.CRITICAL and now - opened < FOLLOWS_FOR:
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
    if watchdog == "node_health" or (watchdog == "failures" and finding.severity is Severity.WARNING):
        return expand(finding.node) if finding.node else ()
    return ()


def _rank(finding: Finding, entry: LedgerEntry | None, now: datetime) -> tuple[bool, datetime, int, bool, str]:
    """Return the order of causes: the oldest open alert, then the worst, then what Slurm says about the node."""
    is_open = entry is not None and entry.is_open and not entry.follows
    opened = entry.opened if is_open and entry and entry.opened else now
    return not is_open, opened, -finding.severity.rank, _watchdog(finding) != "node_health", finding.key


def _watchdog(finding: Finding) -> str:
    return finding.key.partition("/")[0]
