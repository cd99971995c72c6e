"""The digest: what happened to the trains of a site since a time, for the daily mail and the hand-over. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.base.units import format_duration, format_percent, format_time
from opsctl.state.events import AttemptFinalized, Event, ExclusionDecided, Readmitted, StopStep
from opsctl.telemetry.progress.effective_time import Bucket

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
    """Return what opsctl did by itself since a time, with the reasons, the oldest first."""
    lines = []
    for event in events:
        if event.when >= since and (text := _describe(event)):
            lines.append(f"{event.when:%Y-%m-%d %H:%M} UTC: {text}")
    if left := max(0, len(lines) - MAX_ACTIONS):
        return (f"{left} earlier actions", *lines[left:])
    return tuple(lines)


def _describe(event: Event) -> str:
    match event:
        case AttemptFinalized():
            return f"{event.attempt} {event.outcome}, {event.action}: {event.why}"
        case ExclusionDecided():
            verb = "excluded" if event.excluded else "could not exclude"
            return f"{verb} {event.nodes} until {event.until:%Y-%m-%d %H:%M}: {event.reason}"
        case Readmitted():
            return f"readmitted {event.nodes}"
        case StopStep():
            return f"{event.attempt} stopped: {event.step}: {event.why}"
        case _:
            return ""


def render(digest: Digest, *, is_markdown: bool = False) -> str:
    """Return the digest as plain text or as Markdown."""
    title = render_subject(digest)
    lines = [f"# {title}" if is_markdown else title, ""]
    for train in digest.trains:
        lines += _section(_headline(train), _lines_of(train), is_markdown=is_markdown)
    lines += _section("Open alerts", digest.alerts or ("none",), is_markdown=is_markdown)
    if digest.acknowledged:
        lines += _section("Acknowledged alerts", digest.acknowledged, is_markdown=is_markdown)
    lines += _section("Disks", digest.disks or ("not measured yet",), is_markdown=is_markdown)
    lines += _section("Nodes out of service", digest.nodes or ("none",), is_markdown=is_markdown)
    if digest.problems:
        lines += _section("Unknown", digest.problems, is_markdown=is_markdown)
    return "\n".join(lines)


def render_subject(digest: Digest) -> str:
    """Return the subject of the mail: the trains by state, and the number of open alerts."""
    states: dict[str, int] = {}
    for train in digest.trains:
        states[train.state] = states.get(train.state, 0) + 1
    trains = ", ".join(f"{count} {state}" for state, count in states.items()) or "no trains"
    alerts = f"{len(digest.alerts)} open alert{'s' * (len(digest.alerts) != 1)}"
    return f"[{digest.site}] Digest since {digest.since:%Y-%m-%d %H:%M} UTC: {trains}; {alerts}"


def _section(title: str, lines: Iterable[str], *, is_markdown: bool) -> list[str]:
    mark = "- " if is_markdown else "  "
    return [f"## {title}" if is_markdown else title, *(f"{mark}{line}" for line in lines), ""]


def _headline(train: TrainDigest) -> str:
    parts = [f"{train.train}: {train.state}"]
    if train.step is not None:
        parts.append(f"step {train.step:,}" + (f" of {train.last_step:,}" if train.last_step else ""))
    if train.steps_done is not None:
        parts.append(f"about {train.steps_done:,} of them new")
    return ", ".join(parts)


def _lines_of(train: TrainDigest) -> Iterator[str]:
    if train.loss is not None:
        yield f"loss: {train.loss:.4g}"
    if train.effective_share is not None:
        yield f"effective time: {format_percent(train.effective_share)} of {format_duration(train.wall_s)}"
    for bucket, lost_s in train.losses:
        yield f"lost to {bucket}: {lost_s / 3600:.1f} h"
    if train.end:
        between = ""
        if train.end_range:
            between = f" (between {format_time(train.end_range[0])} and {format_time(train.end_range[1])})"
        yield f"expected end: {format_time(train.end)}{between}"
    for action in train.actions:
        yield f"opsctl: {action}"
    if train.problem:
        yield f"unknown: {train.problem}"
