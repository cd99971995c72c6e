"""What one look means for what people were told. Pure: of what was remembered, what was seen and what time it is.

Worse must hold for some looks, except what is critical. Better holds at once, unless it keeps coming back. UNKNOWN
takes nothing back, and is told when it lasts.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, timedelta

from opsctl.alerts.ledger_state import SEVERITY, AlertTransition, LedgerEntry
from opsctl.model import Finding, Level, Transition
from opsctl.settings.alerts import AlertSettings

MOST_LOOKS = 16
"""However often it came back: found to be better so many times in a row, it is."""


def next_entry(
    entry: LedgerEntry | None, finding: Finding, now: datetime, rules: AlertSettings, *, is_silenced: bool = False
) -> tuple[LedgerEntry, AlertTransition | None]:
    """What is to be remembered, and what is to be told if anything. While silenced, nothing is: it stays to be told."""
    entry = (
        _not_after(now, entry) if entry else LedgerEntry(key=finding.key, since=now, seen=finding.level, checked_at=now)
    )
    entry = replace(entry, seen=finding.level, checked_at=now)
    if finding.level is entry.level:
        entry = replace(entry, finding=finding, other_looks=0, other_since=None)
        return _still(entry, finding, now, rules, is_silenced=is_silenced)
    if finding.level is Level.UNKNOWN and entry.finding and entry.level is not Level.OK:
        blind = replace(entry.finding, evidence=(*entry.finding.evidence, f"now it is unknown: {finding.summary}"))
        return _still(entry, blind, now, rules, is_silenced=is_silenced)
    entry = _counted(entry, finding.level, now)
    if is_silenced or not (finding.is_certain or _holds(entry, finding.level, now, rules)):
        return entry, None
    return _changed(entry, finding, now, rules)


def _not_after(now: datetime, entry: LedgerEntry) -> LedgerEntry:
    """Another host's clock may be ahead of ours: nothing has happened later than now."""
    stamps = {
        name: at
        for name in ("since", "checked_at", "other_since", "opened", "notified_at")
        if (at := getattr(entry, name))
    }
    return replace(entry, **{name: min(at, now) for name, at in stamps.items()})


def _counted(entry: LedgerEntry, level: Level, now: datetime) -> LedgerEntry:
    is_worse = SEVERITY[level] > SEVERITY[entry.level]
    goes_on = entry.other_since is not None and entry.other_is_worse is is_worse
    return replace(
        entry,
        other_is_worse=is_worse,
        other_since=entry.other_since if goes_on else now,
        other_looks=(entry.other_looks if goes_on else 0) + (level is not Level.UNKNOWN),
    )


def _holds(entry: LedgerEntry, level: Level, now: datetime, rules: AlertSettings) -> bool:
    age = (now - (entry.other_since or now)).total_seconds()
    if not entry.other_is_worse:
        return entry.other_looks >= min(1 << entry.flaps, MOST_LOOKS)
    if level is Level.UNKNOWN:
        return age >= rules.unknown_minutes * 60
    if level is Level.CRITICAL:
        return entry.other_looks >= rules.critical_looks
    return entry.other_looks >= rules.warning_looks and age >= rules.hold_seconds


def _changed(
    entry: LedgerEntry, finding: Finding, now: datetime, rules: AlertSettings
) -> tuple[LedgerEntry, AlertTransition]:
    is_worse = entry.other_is_worse
    comes_back = is_worse and entry.has_improved and now - entry.since <= timedelta(minutes=rules.flap_minutes)
    if entry.level is Level.OK and not comes_back:
        entry = replace(entry, incident=uuid.uuid4().hex[:12], opened=now, notified=0, flaps=0)
    ledger_entry = replace(
        entry,
        level=finding.level,
        since=now,
        finding=finding,
        other_looks=0,
        other_since=None,
        notified=entry.notified + 1,
        notified_at=now,
        repeats=0,
        has_improved=not is_worse,
        flaps=entry.flaps + comes_back,
        acknowledged=None if is_worse or finding.level is Level.OK else entry.acknowledged,
    )
    return ledger_entry, _noted(ledger_entry, finding, before=entry, now=now)


def _still(
    entry: LedgerEntry, finding: Finding, now: datetime, rules: AlertSettings, *, is_silenced: bool
) -> tuple[LedgerEntry, AlertTransition | None]:
    """Say again that it is critical, ever more seldom."""
    quiet = is_silenced or entry.acknowledged or entry.notified_at is None or not rules.repeat_hours
    if entry.level is not Level.CRITICAL or quiet or entry.notified_at is None:
        return entry, None
    hours = rules.repeat_hours[min(entry.repeats, len(rules.repeat_hours) - 1)]
    if now - entry.notified_at < timedelta(hours=hours):
        return entry, None
    ledger_entry = replace(entry, notified=entry.notified + 1, notified_at=now, repeats=entry.repeats + 1)
    return ledger_entry, _noted(ledger_entry, finding, before=entry, now=now)


def _noted(entry: LedgerEntry, finding: Finding, *, before: LedgerEntry, now: datetime) -> AlertTransition:
    transition = Transition(id=f"{entry.incident}.{entry.notified}", finding=finding, before=before.level, at=now)
    return AlertTransition(
        transition=transition, opened=entry.opened or now, was=before.finding.summary if before.finding else ""
    )
