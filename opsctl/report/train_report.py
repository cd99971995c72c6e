"""The report of one of our trains, from its journal, its log and what its attempts left."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path

from opsctl.errors import InputError
from opsctl.guard.outcome import Outcome
from opsctl.model import JobState
from opsctl.report.attempts import AttemptFacts, collect_attempts, with_jobs
from opsctl.report.contents import NamedAttempt, Report, Window, add_up
from opsctl.report.queue_waits import find_waits
from opsctl.report.sacct import JobRun
from opsctl.state.journal import Event, EventKind
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.effective_time import AttemptSpan, Bucket, SpanEnd
from opsctl.telemetry.progress.log_summary import LogPart, LogSummary
from opsctl.telemetry.progress.read_log import read_summary
from opsctl.units import format_duration

MOST_RANKS = 4096
"""Logs of ranks that are asked when they were written last."""
_LEFT = (Outcome.FINISHED, Outcome.KILLED, Outcome.PAUSED, Outcome.DEADLINE, Outcome.STOPPED, Outcome.EXITED,
         Outcome.REFUSED, Outcome.NODE_REFUSED, Outcome.SKIPPED, JobState.COMPLETED)  # fmt: skip
_CUT = (Outcome.CANCELLED, Outcome.PREEMPTED, JobState.CANCELLED, JobState.PREEMPTED)
_ENDINGS: dict[str, SpanEnd] = {**dict.fromkeys(_LEFT, SpanEnd.LEFT), **dict.fromkeys(_CUT, SpanEnd.CUT)}
"""By the outcome of the finalization, or by Slurm's word where there was none; all others broke."""
_OVER = frozenset({Outcome.FINISHED, Outcome.KILLED})


def report_train(
    run: RunDir, events: Sequence[Event], now: datetime, *, since: datetime | None = None, jobs: Sequence[JobRun] = ()
) -> Report:
    """Where the time of `run` went, from its first submission, or `since`, to `now`, or to its end if it is finished.

    `jobs` are what accounting remembers of its arrays, where there is any.

    Raises InputError where there is nothing to report on, RunDirError for a log that may not be read.
    """
    submitted = next((event for event in events if event.kind in {EventKind.SUBMITTING, EventKind.SUBMITTED}), None)
    known = with_jobs(collect_attempts(run, events), jobs)
    if submitted is None and not known:
        raise InputError(f"{run.name} was never submitted: there is nothing to report", hint="opsctl launch submits it")
    begin = min([*([submitted.when.timestamp()] if submitted else []), *(attempt.begin for attempt in known)])
    end = _end(known, events, now)
    window = checked_window(begin, end, since, now)
    summary, parts, notes = _told(run, known)
    following = [*known[1:], None]
    named = [_named(run, *each, end) for each in zip(known, parts, following, strict=False)]
    report = add_up(run.name, named, find_waits(events, end=end), summary, window, made=now, notes=notes)
    return replace(report, notes=(*report.notes, *_silent(report)))


def _silent(report: Report) -> Iterator[str]:
    """A last attempt that is held to hang may be long over: then nobody has finalized it."""
    last = report.attempts[-1] if report.attempts else None
    if last and not last.outcome and last.buckets[Bucket.HANG]:
        silence = format_duration(last.buckets[Bucket.HANG])
        yield f"{last.attempt} has told of no step for {silence}: opsctl status says whether it runs"


def checked_window(begin: float, end: float, since: datetime | None, now: datetime) -> Window:
    """What to report on. Raises InputError for a `since` that leaves nothing."""
    if since is None:
        return Window(begin=begin, since=begin, end=end)
    if since > now:
        raise InputError(f"--since {since.astimezone():%Y-%m-%d %H:%M:%S} is in the future")
    if since.timestamp() >= end:
        ended = f"{datetime.fromtimestamp(end, now.tzinfo).astimezone():%Y-%m-%d %H:%M:%S}"
        raise InputError(
            f"--since {since.astimezone():%Y-%m-%d %H:%M:%S}: all was over at {ended}", hint="an earlier --since"
        )
    return Window(begin=begin, since=max(begin, since.timestamp()), end=end)


def _end(known: Sequence[AttemptFacts], events: Sequence[Event], now: datetime) -> float:
    """Of a run that is finished, killed or cancelled as a whole, when that was; else it goes on."""
    again = [
        event for event in events if event.kind in {EventKind.SUBMITTING, EventKind.SUBMITTED, EventKind.CANCELLED}
    ]
    is_cancelled = bool(again) and again[-1].kind is EventKind.CANCELLED and "_" not in str(again[-1].data["job"])
    if known and known[-1].end is not None:
        submits = [event.number for event in again if event.kind is not EventKind.CANCELLED]
        finalized = [event.number for event in events if event.kind is EventKind.ATTEMPT_FINALIZED]
        is_over = known[-1].outcome in _OVER and max(submits, default=0) < max(finalized, default=0)
        if is_over or is_cancelled:
            return known[-1].end
    if is_cancelled and not (known and known[-1].end is None):
        return again[-1].when.timestamp()
    return now.timestamp()


def _named(
    run: RunDir, attempt: AttemptFacts, part: tuple[LogPart, bool], following: AttemptFacts | None, end: float
) -> NamedAttempt:
    ends = [value for value in (attempt.end, following.begin if following else None) if value is not None]
    lived = AttemptSpan(
        begin=attempt.begin, end=max(attempt.begin, min(ends, default=end)), ending=_ending(attempt, following),
        told=part[0], nodes=attempt.node_count, last_word=_last_word(run, attempt.attempt), is_torn=part[1],
    )  # fmt: skip
    return NamedAttempt(
        attempt=attempt.attempt, lived=lived, outcome=attempt.outcome, why=attempt.why, nodes=attempt.nodes
    )


def _ending(attempt: AttemptFacts, following: AttemptFacts | None) -> SpanEnd:
    if not attempt.outcome:
        return SpanEnd.BROKE if following else SpanEnd.OPEN
    return _ENDINGS.get(attempt.outcome, SpanEnd.BROKE)


def _last_word(run: RunDir, attempt: str) -> float:
    """When a rank of it last said anything; nan if that is not known."""
    latest = math.nan
    try:
        with os.scandir(run.attempt_logs(attempt)) as entries:
            for _, entry in zip(range(MOST_RANKS), entries, strict=False):
                if entry.name.endswith(".log"):
                    latest = max(entry.stat().st_mtime, latest)
    except OSError:
        return math.nan
    return latest


def _told(run: RunDir, known: Sequence[AttemptFacts]) -> tuple[LogSummary, list[tuple[LogPart, bool]], list[str]]:
    """What the log told; the part of each attempt in it, and whether the beginning of that is lost; notes.

    Lives say where in the log they began. Where that goes back, or beyond its end, the log was replaced in between:
    what an older one told is lost, unless it lies beside it as `main_log.txt.1`.
    """
    files = _files(run.main_log)
    size = _size(files[-1]) if files else 0
    # An attempt that does not say where it began told nothing: what there is belongs to the one before it.
    later = accumulate(
        reversed(known), lambda at, attempt: at if attempt.offset is None else attempt.offset, initial=size
    )
    offsets = list(later)[:0:-1]
    groups = _groups(offsets, size)
    parts = [(LogPart(), True) for _ in known]
    summary, carried, lost = LogSummary(), LogPart(), 0
    for group, path in zip(reversed(groups), [*reversed(files), *[None] * len(groups)], strict=False):
        lost += len(group) if path is None else 0
        read = (
            read_summary(path, [offsets[at] for at in group]) if path else LogSummary([LogPart() for _ in (0, *group)])
        )
        before, *own = read.parts
        if not own:
            before.join(carried)
        else:
            own[-1].join(carried)
            parts[group.start : group.stop] = [(part, path is None) for part in own]
        carried, summary = before, _merged(read, summary)
    who = f"{lost} attempts" if lost > 1 else "an attempt"
    notes = [f"the log of {who} is gone, in whole or in part: what it told is unknown"] if lost else []
    if known and not summary.lines:
        notes.append(
            "there are no iteration lines in the log, so what was training is unknown:"
            " docs/how-to/foreign-trainer.md has one to print"
        )
    return summary, parts, notes


def _groups(offsets: Sequence[int], size: int) -> list[range]:
    """Lives whose log is the same file, the newest file last; there is always one for it."""
    cuts = [at for at in range(1, len(offsets)) if offsets[at] < offsets[at - 1]]
    if offsets and offsets[-1] > size:
        cuts.append(len(offsets))
    edges = [0, *cuts, len(offsets)]
    return [range(begin, end) for begin, end in pairwise(edges)]


def _files(log: Path) -> list[Path]:
    """The log and what it was rotated to, the oldest first."""
    numbers = (
        (path.name.removeprefix(f"{log.name}.").removesuffix(".gz"), path) for path in log.parent.glob(f"{log.name}.*")
    )
    older = [(int(number), path) for number, path in numbers if number.isdecimal()]
    return [path for _, path in sorted(older, reverse=True)] + ([log] if log.exists() else [])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _merged(older: LogSummary, newer: LogSummary) -> LogSummary:
    """Both, the curve and the figures of the newer one where it has any."""
    if not newer.lines:
        return older
    for point in older.loss.points():
        newer.loss.add(point.step, point.mean)
    newer.parts = [*older.parts, *newer.parts]
    newer.first = older.first or newer.first
    return newer
