"""What people read: one message for a transition, or for a storm of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.alerts.ledger_state import SEVERITY, AlertTransition, Batch
from opsctl.model import Level
from opsctl.render import render

LONGEST_SUBJECT = 160
MOST_IN_STORM = 50
"""So many are told of one by one; of the rest, how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """As every channel gets it."""

    id: str
    """The same however often it is sent: Message-IDs and deduplication keys are made from it."""
    root: str
    """The id of the first message of its thread; its own where it is that."""
    at: datetime
    level: Level
    """How bad it is that people are told of: for what is over, OK."""
    subject: str
    body: str


def transition_word(noted: AlertTransition) -> str:
    """What happened, in capitals."""
    before, after = noted.transition.before, noted.transition.finding.level
    if after is Level.OK:
        return "RESOLVED"
    if after is before:
        return f"STILL {after.upper()}"
    better = SEVERITY[after] < SEVERITY[before]
    return f"{'BETTER: ' if better else ''}{after.upper()}"


def render_single(noted: AlertTransition, *, root: str = "") -> Message:
    transition = noted.transition
    values = {
        "noted": noted,
        "finding": transition.finding,
        "word": transition_word(noted),
        "before": transition.before,
        "at": transition.at,
        "minutes": _minutes(noted),
        "remedy": transition.finding.remedy or f"opsctl status {transition.finding.train}".strip(),
    }
    return Message(
        id=transition.id,
        root=root or transition.id,
        at=transition.at,
        level=transition.finding.level,
        subject=_one_line(render("alerts/subject.j2", **values)),
        body=render("alerts/body.j2", **values),
    )


def render_storm(batch: Batch, noted: Sequence[AlertTransition], *, root: str = "") -> Message:
    """One message for all of `noted`, the worst first."""
    ordered = sorted(noted, key=lambda transition: -SEVERITY[transition.transition.finding.level])
    counts: dict[str, int] = {}
    for transition in ordered:
        counts[transition_word(transition)] = counts.get(transition_word(transition), 0) + 1
    shown = [(transition_word(transition), transition.transition.finding) for transition in ordered[:MOST_IN_STORM]]
    values = {"counts": counts, "shown": shown, "left": len(ordered) - len(shown), "total": len(ordered),
              "at": ordered[0].transition.at, "id": batch.id}  # fmt: skip
    return Message(
        id=f"storm-{batch.id}",
        root=root or f"storm-{batch.id}",
        at=ordered[0].transition.at,
        level=ordered[0].transition.finding.level,
        subject=_one_line(render("alerts/storm-subject.j2", **values)),
        body=render("alerts/storm-body.j2", **values),
    )


def _minutes(noted: AlertTransition) -> int:
    return int((noted.transition.at - noted.opened).total_seconds() // 60)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_SUBJECT else line[: LONGEST_SUBJECT - 1] + "…"
