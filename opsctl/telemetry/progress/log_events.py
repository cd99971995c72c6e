"""What a log line says about saves, resumes, signals and the end, by the patterns of log_events.toml. Pure."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from opsctl.base.tables import read_package_table

TABLE = "telemetry/progress/log_events.toml"
MAX_TEXT_CHARS = 200


class ProgressEventKind(StrEnum):
    """What a trainer says."""

    STARTED = "started"
    """Said by opsctl's guard: an attempt begins."""
    ANNOUNCED = "announced"
    SAVING = "saving"
    SAVED = "saved"
    RESUMING = "resuming"
    RESUMED = "resumed"
    FINISHED = "finished"
    SIGNALLED = "signalled"
    EXITING = "exiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressEvent:
    """One statement of a trainer; None for what the line does not state."""

    kind: ProgressEventKind
    path: str | None = None
    step: int | None = None
    total: int | None = None
    is_found: bool = True
    """False if the trainer found nothing to resume from."""
    text: str = ""
    """The statement itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPattern:
    """One row of log_events.toml, which explains the fields."""

    kind: ProgressEventKind
    pattern: re.Pattern[str]
    is_found: bool


@cache
def load_event_patterns() -> tuple[EventPattern, ...]:
    """Return the rows in the order of log_events.toml."""
    return tuple(
        EventPattern(
            kind=ProgressEventKind(row["kind"]),
            pattern=re.compile(row["pattern"]),
            is_found=row.get("found", True),
        )
        for row in read_package_table(TABLE)["event"]
    )


@cache
def load_words() -> tuple[str, ...]:
    """Return the texts of which every line of an event holds one. The search for them is fast."""
    return tuple(read_package_table(TABLE)["words"])


@cache
def _compile_words() -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, load_words())))


def parse_event(text: str) -> ProgressEvent | None:
    """Return what a line says, without colours and carriage returns; None for any other line."""
    if not _compile_words().search(text):
        return None
    for row in load_event_patterns():
        if match := row.pattern.search(text):
            return _event(row, match)
    return None


def _event(row: EventPattern, match: re.Match[str]) -> ProgressEvent:
    groups = {name: value for name, value in match.groupdict().items() if value is not None}
    step = _whole(groups.get("step") or groups.get("step2"))
    if step is None and (next_step := _whole(groups.get("next"))) is not None:
        step = next_step - 1
    path = groups.get("path") or groups.get("path2")
    return ProgressEvent(
        kind=row.kind,
        path=path.rstrip(".,;:'\"") if path else None,
        step=step,
        total=_whole(groups.get("total")),
        is_found=row.is_found,
        text=match[0].strip()[:MAX_TEXT_CHARS],
    )


def _whole(text: str | None) -> int | None:
    digits = (text or "").replace(",", "")
    return int(digits) if digits.isdecimal() and len(digits) <= 15 else None
