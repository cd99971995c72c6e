"""The digest: what happened to the trains of a site since a time, for the daily mail and the hand-over. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from textwrap import shorten

from opsctl.base.units import format_duration, format_percent, format_time
from opsctl.launch.render import render as render_template
from opsctl.state.events import AttemptFinalized, Diagnosed, Event, ExclusionDecided, Readmitted, StopStep
from opsctl.telemetry.progress.effective_time import Bucket

MAX_LOSSES = 3
MIN_LOSS_S = 180.0
"""Less is 0.0 h."""
NEAR_END = timedelta(days=2)
MAX_WHY_CHARS = 100
MAX_ACTIONS = 20
"""A digest lists the newest actions of a train up to this number, and the number of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDigest:
    train: str
    state: str
    step: int | None = None
    last_step: int | None = None
    steps_done: int | None = None
    """Steps done for the first time, from the effective time and the usual time of a step; None if unknown."""
    loss: float | None = None
    wall_s: float = 0.0
    effective_share: float | None = None
    losses: tuple[tuple[Bucket, float], ...] = ()
    """Lost seconds by phase, the largest first."""
    end: datetime | None = None
    """The estimated end of the training."""
    end_range: tuple[datetime, datetime] | None = None
    actions: tuple[str, ...] = ()
    """What opsctl did by itself, and why."""
    problem: str = ""
    """Why figures are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    site: str
    since: datetime
    made: datetime
    trains: tuple[TrainDigest, ...]
    alerts: tuple[str, ...]
    """Open alerts, the worst first."""
    acknowledged: tuple[str, ...]
    disks: tuple[str, ...]
    nodes: tuple[str, ...]
    """Nodes out of service or excluded, with the reason."""
    problems: tuple[str, ...] = ()


def list_actions(events: Sequence[Event], since: datetime) -> tuple[str, ...]:
    """Return what opsctl did by itself since a time, with the reasons, the oldest first.

    Ends with one outcome, action and cause are one line: the newest, and their number.
    """
    causes = {event.attempt: event.cause for event in events if isinstance(event, Diagnosed)}
    groups: dict[tuple[str, ...], list[str]] = {}
    for event in events:
        if event.when >= since and (text := _describe(event)):
            same: tuple[str, ...] = (text,)
            if isinstance(event, AttemptFinalized):
                same = (event.outcome, event.action, causes.get(event.attempt, event.why))
            groups[same] = [*groups.pop(same, []), f"{format_time(event.when)}: {text}"]
    lines = [f"{texts[-1]} ({len(texts)} such ends)" if texts[1:] else texts[0] for texts in groups.values()]
    left = max(0, len(lines) - MAX_ACTIONS)
    return (f"{left} earlier actions", *lines[left:]) if left else tuple(lines)


def _describe(event: Event) -> str:
    match event:
        case AttemptFinalized():
            why = shorten(event.exit_why or event.why, MAX_WHY_CHARS, placeholder="…")
            return f"{event.attempt} {event.outcome}, {event.action}: {why}"
        case ExclusionDecided():
            verb = "excluded" if event.excluded else "could not exclude"
            return f"{verb} {event.nodes} until {format_time(event.until)}: {event.reason}"
        case Readmitted():
            return f"readmitted {event.nodes}"
        case StopStep():
            return f"{event.attempt} stopped: {event.step}: {event.why}"
        case _:
            return ""


def render(digest: Digest) -> str:
    """Return the digest as Markdown: a paragraph, a table of trains, what needs a decision, and the rest."""
    measured = [train for train in digest.trains if train.effective_share is not None and train.wall_s]
    wall_s = sum(train.wall_s for train in measured)
    lost = sum((Counter(dict(train.losses)) for train in measured), Counter[Bucket]())
    return render_template(
        "report/digest.md.j2",
        digest=digest,
        title=render_subject(digest),
        share=format_percent(1 - lost.total() / wall_s) if measured else "",
        wall=format_duration(wall_s),
        most=_list_hours(lost.most_common(1)),
        rows=[_row_of(train, digest.made) for train in digest.trains],
    )


def render_subject(digest: Digest) -> str:
    """Return the subject of the mail: the trains by state, and the number of open alerts."""
    states = Counter(train.state for train in digest.trains)
    trains = ", ".join(f"{count} {state}" for state, count in states.items()) or "no trains"
    alerts = f"{len(digest.alerts)} open alert{'s' * (len(digest.alerts) != 1)}"
    return f"[{digest.site}] Digest since {format_time(digest.since)}: {trains}; {alerts}"


def _list_hours(losses: Iterable[tuple[Bucket, float]]) -> list[str]:
    return [f"{bucket} {lost_s / 3600:.1f} h" for bucket, lost_s in losses if lost_s >= MIN_LOSS_S]


def _row_of(train: TrainDigest, now: datetime) -> tuple[str, ...]:
    steps = "" if train.step is None else f"{train.step:,}"
    steps += f" of {train.last_step:,}" if steps and train.last_step else ""
    steps += f", {train.steps_done:,} new" if train.steps_done is not None else ""
    lost = ", ".join(_list_hours(train.losses[:MAX_LOSSES]))
    return train.train, train.state, steps, _describe_end(train, now), lost


def _describe_end(train: TrainDigest, now: datetime) -> str:
    """Return the date of the end with its range, within two days also the time. A range of one moment says nothing."""
    if train.end is None:
        return ""
    ends = (train.end, *(train.end_range or ()))
    end, *rest = [format_time(at)[: None if train.end - now < NEAR_END else len("2026-03-01")] for at in ends]
    return f"{end} ({' to '.join(rest)})" if len(set(rest)) > 1 else end
