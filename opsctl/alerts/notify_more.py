"""Alert more people while an alert is not acknowledged. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from opsctl.alerts.ledger_state import SEVERITY, AlertTransition, LedgerEntry
from opsctl.base.findings import Level, Transition
from opsctl.settings.alerts import AlertSettings


def escalate(entry: LedgerEntry, now: datetime, rules: AlertSettings) -> tuple[LedgerEntry, AlertTransition | None]:
    """Return the entry, and the transition for the channels of every escalation step that is due."""
    if entry.level is Level.OK or entry.acknowledged or entry.finding is None or not entry.notified:
        return entry, None
    steps = [step for step in rules.escalation if SEVERITY[Level(step.level)] <= SEVERITY[entry.level]]
    steps = sorted(steps, key=lambda step: step.after_minutes)
    due = [step for step in steps[entry.escalated :] if now - entry.since >= timedelta(minutes=step.after_minutes)]
    if not due:
        return entry, None
    number = entry.notified + 1
    transition = Transition(id=f"{entry.incident}.{number}", finding=entry.finding, before=entry.level, at=now)
    channels: dict[str, None] = {}
    for step in due:
        channels |= dict.fromkeys(step.channels)
    change = AlertTransition(transition=transition, opened=entry.opened or now, to=tuple(channels))
    return replace(entry, escalated=entry.escalated + len(due), notified=number), change
