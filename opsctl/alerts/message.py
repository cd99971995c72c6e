"""The text of an alert: one message for a transition, or one for a storm of transitions."""

import unicodedata
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote
from zoneinfo import ZoneInfo

from opsctl.alerts.ledger_state import AlertTransition, Batch
from opsctl.base.findings import Severity
from opsctl.base.units import format_duration
from opsctl.launch.render import render
from opsctl.settings.alerts import AlertSettings

MAX_SUBJECT_CHARS = 160
MORE_CHARS = len(" (and 999 more)")
MAX_EVIDENCE_LINES = 5
"""A message shows this many lines of evidence; `opsctl alerts show` shows all."""
MIN_AGE_S = 60.0
"""A younger alert counts as new."""
ANSWER_ID_PREFIX = "answer-"
"""Start of the ids of messages that reply to a person's answer."""
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
    severity: Severity
    """The severity that the message reports; OK for RESOLVED."""
    subject: str
    body: str


def find_incident(id: str) -> str:
    """Return the incident of a message's id: what all messages from the first alert to RESOLVED share."""
    return id.rpartition(".")[0] or id


def transition_word(change: AlertTransition) -> str:
    """Return the transition in capitals: RESOLVED, CRITICAL, STILL CRITICAL, BETTER: WARNING."""
    before, after = change.transition.before, change.transition.finding.severity
    if change.to:
        return f"NOT ACKNOWLEDGED: {after.upper()}"
    if after is Severity.OK:
        return "RESOLVED"
    if after is before:
        return f"STILL {after.upper()}"
    prefix = "BETTER: " if after.rank < before.rank else ""
    return f"{prefix}{after.upper()}"


def render_single(
    change: AlertTransition,
    rules: AlertSettings,
    *,
    root: str = "",
    also: Sequence[AlertTransition] = (),
    id: str = "",
) -> Message:
    """Return the message for one transition, which mentions the transitions of the same train in `also`.

    `root` is the id of the thread's first message, if there is a thread; `id` replaces the transition's id.
    """
    transition, finding = change.transition, change.transition.finding
    seconds = (transition.at - change.opened).total_seconds()
    values = {
        "change": change,
        "finding": finding,
        "site": rules.site_name,
        "word": transition_word(change),
        "is_resolved": finding.is_ok,
        "name": "" if not finding.train or finding.names_train else f"{finding.train}: ",
        "before": transition.before,
        "at": describe_time(transition.at, rules.time_zone),
        "opened": describe_time(change.opened, rules.time_zone),
        "age": format_duration(seconds) if seconds >= MIN_AGE_S else "",
        "evidence": finding.lines[:MAX_EVIDENCE_LINES],
        "left": len(finding.lines[MAX_EVIDENCE_LINES:]),
        "remedy": finding.remedy or f"opsctl status {finding.train}".strip(),
        "also": [(transition_word(other), other.transition.finding) for other in also],
        "links": [
            link.format(train=quote(finding.train), key=quote(finding.key, safe=""))
            for link in rules.link_base
            if finding.train or "{train}" not in link
        ],
        "id": id or transition.id,
    }
    subject = render("alerts/subject.j2", **values)
    if also:
        subject = f"{_join_lines(subject, MAX_SUBJECT_CHARS - MORE_CHARS)} (and {len(also)} more)"
    return Message(
        id=id or transition.id,
        root=root or id or transition.id,
        at=transition.at,
        severity=finding.severity,
        subject=_join_lines(subject),
        body=_to_plain(render("alerts/body.j2", **values)),
    )


def render_group(batch: Batch, changes: Sequence[AlertTransition], rules: AlertSettings, *, root: str = "") -> Message:
    """Return one message for transitions of one train in one watch cycle: the worst in full, the others in a line."""
    worst, *others = sorted(changes, key=lambda change: -change.transition.finding.severity.rank)
    return render_single(worst, rules, root=root, also=others, id=f"group-{batch.id}-{worst.transition.id}")


def render_storm(batch: Batch, changes: Sequence[AlertTransition], rules: AlertSettings, *, root: str = "") -> Message:
    """Return one message for all of `changes`, the worst first."""
    ordered = sorted(changes, key=lambda change: -change.transition.finding.severity.rank)
    shown = [(transition_word(change), change.transition.finding) for change in ordered[:MAX_LISTED_IN_STORM]]
    worst = ordered[0].transition
    values = {
        "site": rules.site_name,
        "counts": Counter(map(transition_word, ordered)),
        "shown": shown,
        "left": len(ordered) - len(shown),
        "total": len(ordered),
        "at": describe_time(worst.at, rules.time_zone),
        "id": batch.id,
    }
    return Message(
        id=f"storm-{batch.id}",
        root=root or f"storm-{batch.id}",
        at=worst.at,
        severity=worst.finding.severity,
        subject=_join_lines(render("alerts/storm-subject.j2", **values)),
        body=_to_plain(render("alerts/storm-body.j2", **values)),
    )


def make_message(kind: str, subject: str, body: str, at: datetime) -> Message:
    """Return a message that is no alert: a digest or a test. `kind` starts the id."""
    id = f"{kind}-{uuid.uuid4().hex[:12]}"
    return Message(id=id, root=id, at=at, severity=Severity.OK, subject=_join_lines(subject), body=_to_plain(body))


def describe_time(at: datetime, zone_name: str) -> str:
    """Return the local time with its zone, and UTC: `2026-01-01 04:00 CET (03:00 UTC)`. Empty zone: the machine's."""
    local, utc = at.astimezone(ZoneInfo(zone_name) if zone_name else None), at.astimezone(UTC)
    if not local.utcoffset():
        return f"{utc:%Y-%m-%d %H:%M} UTC"
    day = f"{utc:%Y-%m-%d} " if utc.date() != local.date() else ""
    return f"{local:%Y-%m-%d %H:%M} {local:%Z} ({day}{utc:%H:%M} UTC)"


def _join_lines(text: str, limit: int = MAX_SUBJECT_CHARS) -> str:
    line = " ".join(_to_plain(text).split())
    # A mail reader would decode an encoded word, which can hold line ends.
    line = line.replace("=?", "= ?")
    if len(line) <= limit:
        return line
    cut = line[: limit - 1]
    words = cut.rpartition(" ")[0]
    return (words if len(words) > limit // 2 else cut) + "…"


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
