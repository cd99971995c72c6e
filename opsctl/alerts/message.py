"""The text of an alert: one message for a transition, or one for a storm of transitions."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.alerts.ledger_state import SEVERITY, AlertTransition, Batch
from opsctl.model import Level
from opsctl.render import render

MAX_SUBJECT_CHARS = 160
MAX_LISTED_IN_STORM = 50
"""A storm message lists this many transitions, and the number of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One alert, the same for every channel."""

    id: str
    """Constant over all tries; Message-IDs and deduplication keys are made from the id."""
    root: str
    """Id of the first message of the thread; equal to `id` for that first message."""
    at: datetime
    level: Level
    """The severity that the message reports; OK for RESOLVED."""
    subject: str
    body: str


def transition_word(change: AlertTransition) -> str:
    """Return the transition in capitals: RESOLVED, CRITICAL, STILL CRITICAL, BETTER: WARNING."""
    before, after = change.transition.before, change.transition.finding.level
    if after is Level.OK:
        return "RESOLVED"
    if after is before:
        return f"STILL {after.upper()}"
    prefix = "BETTER: " if SEVERITY[after] < SEVERITY[before] else ""
    return f"{prefix}{after.upper()}"


def render_single(change: AlertTransition, *, root: str = "") -> Message:
    """Return the message for one transition. `root` is the id of the thread's first message, if there is a thread."""
    transition = change.transition
    values = {
        "change": change,
        "finding": transition.finding,
        "word": transition_word(change),
        "before": transition.before,
        "at": transition.at,
        "minutes": int((transition.at - change.opened).total_seconds() // 60),
        "remedy": transition.finding.remedy or f"opsctl status {transition.finding.train}".strip(),
    }
    return Message(
        id=transition.id,
        root=root or transition.id,
        at=transition.at,
        level=transition.finding.level,
        subject=_join_lines(render("alerts/subject.j2", **values)),
        body=_to_plain(render("alerts/body.j2", **values)),
    )


def render_storm(batch: Batch, changes: Sequence[AlertTransition], *, root: str = "") -> Message:
    """Return one message for all of `changes`, the worst first."""
    ordered = sorted(changes, key=lambda change: -SEVERITY[change.transition.finding.level])
    shown = [(transition_word(change), change.transition.finding) for change in ordered[:MAX_LISTED_IN_STORM]]
    worst = ordered[0].transition
    values = {
        "counts": Counter(map(transition_word, ordered)),
        "shown": shown,
        "left": len(ordered) - len(shown),
        "total": len(ordered),
        "at": worst.at,
        "id": batch.id,
    }
    return Message(
        id=f"storm-{batch.id}",
        root=root or f"storm-{batch.id}",
        at=worst.at,
        level=worst.finding.level,
        subject=_join_lines(render("alerts/storm-subject.j2", **values)),
        body=_to_plain(render("alerts/storm-body.j2", **values)),
    )


def _join_lines(text: str) -> str:
    line = " ".join(_to_plain(text).split())
    # A mail reader would decode an encoded word, which can hold line ends.
    line = line.replace("=?", "= ?")
    return line if len(line) <= MAX_SUBJECT_CHARS else line[: MAX_SUBJECT_CHARS - 1] + "…"


def _to_plain(text: str) -> str:
    """Return text of logs, nodes and other users without controls, invisible and undecodable characters."""
    return "".join(map(_to_plain_character, text))


def _to_plain_character(character: str) -> str:
    if character in "\n\t":
        return character
    if character in "\r\v\f\x85\u2028\u2029":
        return " "
    category = unicodedata.category(character)
    if category == "Cs":
        return "\ufffd"
    return "" if category in {"Cc", "Cf"} else character
