"""The report of an opsctl train, from its journal, its log and the records of its attempts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path

from opsctl.base.errors import InputError
from opsctl.base.tables import read_package_table
from opsctl.base.units import format_duration
from opsctl.guard.end_record import Outcome, date_last_output
from opsctl.report.attempts import AttemptFacts, add_jobs, collect_attempts, find_waits
from opsctl.report.contents import WHOLE, Report, ReportPeriod, TimedAttempt, Window, add_up
from opsctl.slurm.past_jobs import JobRun
from opsctl.state.drill_score import Drilled
from opsctl.state.events import AttemptFinalized, Cancelled, Event, Submitted, Submitting, cancels_train
from opsctl.state.files import read_size_bytes
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.effective_time import AttemptSpan, Bucket, SpanEnd
from opsctl.telemetry.progress.log_summary import LogPart, LogSummary
from opsctl.telemetry.progress.read_log import read_summary
from opsctl.telemetry.progress.train_settings import read_step_pattern

MAX_LATE_S = 60.0
"""A log that is written this long after the end of its attempt is a copy."""
SPAN_ENDS = {name: SpanEnd(end) for name, end in read_package_table("report/span_ends.toml").items()}
"""By the finalized outcome, or by Slurm's state without one. All other outcomes are SpanEnd.BROKE."""
_NEVER_STARTED = frozenset({Outcome.REFUSED, Outcome.NODE_REFUSED, Outcome.SKIPPED})
"""Outcomes of attempts that certainly did no step."""
_OVER = frozenset({Outcome.FINISHED, Outcome.KILLED})


@dataclass(frozen=True, slots=True)
class TrainReading:
    """The report of a train, and the lines of its log that the report is made of."""

    report: Report
    parts: tuple[LogPart, ...]
    """One for each attempt, in order."""


def read_train(
    run: RunDir,
    events: Sequence[Event],
    now: datetime,
    *,
    period: ReportPeriod = WHOLE,
    jobs: Sequence[JobRun] = (),
) -> TrainReading:
    """Return where the time of a train went, from its first submission to its end or to `now`, within `period`.

    `jobs` are its jobs in Slurm's accounting, if there is accounting.

    Raises InputError if there is nothing to report, RunDirError for a log without read permission.
    """
    submitted = next((event for event in events if isinstance(event, Submitting | Submitted)), None)
    attempts = add_jobs(collect_attempts(run, events), jobs)
    if submitted is None and not attempts:
        raise InputError(f"{run.name} was never submitted: there is nothing to report", hint="opsctl launch submits it")
    begins = [attempt.begin for attempt in attempts]
    if submitted:
        begins.append(submitted.when.timestamp())
    begin, end = min(begins), _find_end(attempts, events, now)
    window = checked_window(begin, end, period, now)
    log = _read_log(run, attempts)
    is_unreadable = not _has_step_times(log.summary) and not run.trainer_config.exists()
    named = [
        _name_attempt(run, attempts, number, log, end, is_unreadable=is_unreadable) for number in range(len(attempts))
    ]
    waits = list(find_waits(events, end=end))
    report = add_up(run.name, named, waits, log.summary, window, made=now, notes=log.notes)
    drills = tuple(event for event in events if isinstance(event, Drilled))
    report = replace(report, notes=(*report.notes, *_note_silence(report)), drills=drills)
    return TrainReading(report, tuple(log.parts))


def _has_step_times(summary: LogSummary) -> bool:
    """Whether the log shows how long any step took."""
    seconds = chain.from_iterable(part.step_seconds for part in summary.parts)
    return any(0 < step_s < math.inf for step_s in seconds)


def _note_silence(report: Report) -> Iterator[str]:
    """Yield a note if the last attempt seems to hang: the attempt may have ended without being finalized."""
    last = report.attempts[-1] if report.attempts else None
    if last and not last.outcome and last.buckets[Bucket.HANG]:
        silence = format_duration(last.buckets[Bucket.HANG])
        yield f"{last.attempt} has logged no step for {silence}: opsctl status shows whether the attempt still runs"


def checked_window(begin: float, end: float, period: ReportPeriod, now: datetime) -> Window:
    """Return the time to report on. Raises InputError if the period leaves no time."""
    since = _check_since(end, period.since, now) if period.since else begin
    until = end if period.until is None else min(end, period.until.timestamp())
    if period.until is not None and until <= max(begin, since):  # `since` lies before the end
        text = f"--until {period.until.astimezone():%Y-%m-%d %H:%M:%S}"
        raise InputError(f"{text}: before the report begins", hint="give a later --until")
    return Window(begin=begin, since=max(begin, since), until=until, end=end)


def _check_since(end: float, since: datetime, now: datetime) -> float:
    since_text = f"{since.astimezone():%Y-%m-%d %H:%M:%S}"
    if since > now:
        raise InputError(f"--since {since_text} is in the future")
    if since.timestamp() >= end:
        ended = f"{datetime.fromtimestamp(end, now.tzinfo).astimezone():%Y-%m-%d %H:%M:%S}"
        raise InputError(f"--since {since_text}: the run ended at {ended}", hint="give an earlier --since")
    return since.timestamp()


def _find_end(attempts: Sequence[AttemptFacts], events: Sequence[Event], now: datetime) -> float:
    """Return when a finished, killed or wholly cancelled train ended; `now` for any other train."""
    changes = [event for event in events if isinstance(event, Submitting | Submitted) or cancels_train(event)]
    is_cancelled = bool(changes) and cancels_train(changes[-1])
    last_end = attempts[-1].end if attempts else None
    if last_end is not None and (is_cancelled or _is_over(attempts[-1], changes, events)):
        return last_end
    runs_now = bool(attempts) and last_end is None
    if is_cancelled and not runs_now:
        return changes[-1].when.timestamp()
    return now.timestamp()


def _is_over(last: AttemptFacts, changes: Sequence[Event], events: Sequence[Event]) -> bool:
    """Whether the train finished or was killed, and was not submitted again."""
    submits = [event.number for event in changes if not isinstance(event, Cancelled)]
    finalized = [event.number for event in events if isinstance(event, AttemptFinalized)]
    return last.outcome in _OVER and max(submits, default=0) < max(finalized, default=0)


def _name_attempt(
    run: RunDir,
    attempts: Sequence[AttemptFacts],
    number: int,
    log: "_TrainLog",
    end: float,
    *,
    is_unreadable: bool,
) -> TimedAttempt:
    attempt = attempts[number]
    following = attempts[number + 1] if number + 1 < len(attempts) else None
    ends = [time for time in (attempt.end, following.begin if following else None) if time is not None]
    span = AttemptSpan(
        begin=attempt.begin,
        end=max(attempt.begin, min(ends, default=end)),
        ending=_find_ending(attempt, following),
        log=log.parts[number],
        nodes=attempt.node_count,
        last_output=_last_output(run, attempt),
        is_truncated=number in log.truncated,
        is_unreadable=is_unreadable and attempt.outcome not in _NEVER_STARTED,
    )
    return TimedAttempt(**attempt.named, span=span)


def _find_ending(attempt: AttemptFacts, following: AttemptFacts | None) -> SpanEnd:
    if not attempt.outcome:
        return SpanEnd.BROKE if following else SpanEnd.OPEN
    return SPAN_ENDS.get(attempt.outcome, SpanEnd.BROKE)


def _last_output(run: RunDir, attempt: AttemptFacts) -> float:
    """Return when a rank last wrote to its log, nan if unknown: as recorded, else by the files.

    In a copy of the run directory the files are younger than the end of the attempt, and show nothing.
    """
    if attempt.last_output is not None:
        return attempt.last_output
    at = date_last_output(run, run.attempt(attempt.attempt))
    is_copy = at is not None and attempt.end is not None and at.timestamp() > attempt.end + MAX_LATE_S
    return math.nan if at is None or is_copy else at.timestamp()


@dataclass(slots=True)
class _TrainLog:
    """The main log of a train over all its files."""

    summary: LogSummary
    parts: list[LogPart]
    """One for each attempt, in order."""
    truncated: set[int]
    """Numbers of the attempts of whose part the beginning is lost."""
    notes: list[str] = field(default_factory=list)


def _read_log(run: RunDir, attempts: Sequence[AttemptFacts]) -> _TrainLog:
    """Read the main log and its rotated files.

    An attempt records the offset in the log at which it began. Where an offset is lower than the one before, or beyond
    the end of the file, the log was replaced. The replaced file is read if it still exists as `main_log.txt.1`.
    """
    files = _list_log_files(run.main_log)
    size_bytes = read_size_bytes(files[-1]) if files else 0
    offsets = _fill_offsets(attempts, size_bytes)
    train_log = _TrainLog(LogSummary(), [LogPart() for _ in attempts], set(range(len(attempts))))
    following = LogPart()  # the beginning of a newer file belongs to the last attempt of the older file
    lost, pattern = 0, read_step_pattern(run)
    for group in reversed(_group_by_file(offsets, size_bytes)):
        path = files.pop() if files else None
        if path is None:
            lost += len(group)
            read = LogSummary([LogPart() for _ in (0, *group)])
        else:
            read = read_summary(path, [offsets[number] for number in group], pattern=pattern)
            train_log.truncated -= set(group)
        head, *parts = read.parts
        last = parts[-1] if parts else head
        last.join(following)
        following = head
        train_log.parts[group.start : group.stop] = parts
        train_log.summary = _merge_summaries(read, train_log.summary)
    train_log.notes = _note_log(train_log.summary, attempts, lost)
    return train_log


def _note_log(summary: LogSummary, attempts: Sequence[AttemptFacts], lost: int) -> list[str]:
    notes = []
    if lost:
        whose = f"{lost} attempts" if lost > 1 else "an attempt"
        notes.append(f"the log of {whose} is missing, in whole or in part: the steps in that part are unknown")
    if attempts and summary.lines and not _has_step_times(summary):
        counted = "epochs" if summary.counts_epochs else "steps"
        notes.append(f"the log shows {counted} and no times, so the training time is unknown")
    if attempts and not summary.lines:
        notes.append(
            "no step in the log can be read, so the training time is unknown:"
            " [progress] pattern in TRAIN.toml describes the lines of another trainer"
        )
    return notes


def _fill_offsets(attempts: Sequence[AttemptFacts], size_bytes: int) -> list[int]:
    """Return where in the log every attempt began.

    An attempt without an offset logged nothing: its text is empty, and lies just before the next attempt.
    """
    offsets: list[int] = []
    next_offset = size_bytes
    for attempt in reversed(attempts):
        if attempt.offset is not None:
            next_offset = attempt.offset
        offsets.append(next_offset)
    return offsets[::-1]


def _group_by_file(offsets: Sequence[int], size_bytes: int) -> list[range]:
    """Return the attempts of each file, the newest file last. The newest file always has a range, maybe empty."""
    cuts = [number for number in range(1, len(offsets)) if offsets[number] < offsets[number - 1]]
    if offsets and offsets[-1] > size_bytes:
        cuts.append(len(offsets))
    edges = [0, *cuts, len(offsets)]
    return [range(begin, end) for begin, end in pairwise(edges)]


def _list_log_files(log: Path) -> list[Path]:
    """Return the log and its rotated files, the oldest first."""
    rotated: list[tuple[int, Path]] = []
    for path in log.parent.glob(f"{log.name}.*"):
        number = path.name.removeprefix(f"{log.name}.").removesuffix(".gz")
        if number.isdecimal():
            rotated.append((int(number), path))
    files = [path for _, path in sorted(rotated, reverse=True)]
    return [*files, log] if log.exists() else files


def _merge_summaries(older: LogSummary, newer: LogSummary) -> LogSummary:
    """Return both as one summary. The curve and the figures of the newer log take precedence."""
    if not newer.lines:
        return older
    for point in older.loss.points():
        newer.loss.add(int(point.step), point.mean)
    newer.parts = [*older.parts, *newer.parts]
    newer.first = older.first or newer.first
    newer.counts_epochs &= older.counts_epochs or not older.lines
    return newer
