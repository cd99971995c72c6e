"""The report of a run that opsctl never saw, from its log, and from what sacct says of its jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from opsctl.errors import InputError
from opsctl.model import JobState
from opsctl.report.contents import NamedAttempt, Report, Window, add_up
from opsctl.report.sacct import JobRun
from opsctl.report.train_report import checked_window
from opsctl.telemetry.progress.effective_time import AttemptSpan, Bucket, IdleSpan, SpanEnd
from opsctl.telemetry.progress.log_summary import LogPart, LogStep, LogSummary
from opsctl.telemetry.progress.read_log import read_summary
from opsctl.telemetry.progress.step_pace import count_steps, log_interval, spoken_s, took_s, usual_step_s

DAY = 86400.0
DAYS = 7 * DAY
"""A time that lies further from the steps is a date in somebody's text."""
_ENDINGS = {JobState.COMPLETED: SpanEnd.LEFT, JobState.CANCELLED: SpanEnd.CUT, JobState.PREEMPTED: SpanEnd.CUT}


def report_log(log: Path, jobs: Sequence[JobRun] | None, now: datetime, *, since: datetime | None = None) -> Report:
    """Where the time of a run went that wrote `log`. `jobs` say when its attempts were, and what waited.

    Raises InputError where there is nothing to report on, RunDirError for a log that may not be read.
    """
    summary = read_summary(log)
    if not summary.lines:
        raise InputError(
            f"{log}: no iteration line in it", hint="those of Megatron look like: iteration 20/ 100 | lm loss: 2.0 | …"
        )
    paced = _Paced(summary)
    if jobs is not None:
        named, waits, notes, window = _by_jobs(paced, jobs, since, now)
    else:
        named, notes, timed = paced.attempts()
        begin, end = named[0].lived.begin, max(named_attempt.lived.end for named_attempt in named)
        if since and not timed:
            raise InputError("--since: there are no times in this log", hint="--sacct FILE tells when its jobs ran")
        window = checked_window(begin, end, since, now) if timed else Window(
            begin=begin, since=begin, end=end, is_timed=False
        )  # fmt: skip
        waits = []
    return add_up(log.name, named, waits, summary, window, made=now, notes=notes)


class _Paced:
    """A log and the pace of its steps, from which the times that it does not tell are reckoned."""

    def __init__(self, summary: LogSummary) -> None:
        self.told = summary
        self.usual, self.every = usual_step_s((part, 0) for part in summary.parts), log_interval(summary.parts)

    def spoken(self, part: LogPart) -> float:
        return spoken_s(part, self._usual, self.every)

    def _usual(self, line: LogStep) -> float:
        return self.usual.get((line.batch, 0), math.nan)

    def begin(self, part: LogPart) -> float:
        """When a part began, as the first time in it tells; nan if it has none."""
        spoken, before = 0.0, None
        for line in part:
            before_line = spoken
            spoken += took_s(line, count_steps(line.step, before, self.every), self._usual(line), self.every)
            before = line.step
            if line.low == line.high:
                stepped = line.low - spoken
                return min(part.first_stamp, stepped) if stepped - part.first_stamp < DAYS else stepped
            if not math.isnan(line.low):
                return part.first_stamp if before_line == 0.0 else line.low - before_line
            if not math.isnan(line.high):
                left = part.last_stamp - self.spoken(part)
                return left if left < line.high - spoken else line.high - spoken
        return part.first_stamp

    def end(self, part: LogPart, begin: float) -> float:
        """When it ended, or was last heard of: the newest time in it, and what the steps after that took."""
        at, before = begin, None
        low, high = (part.columns[column][-1] if len(part) else math.nan for column in (2, 3))
        is_told = low == high and abs(high - begin) < DAYS  # as in most logs: then no line has to be looked at
        if is_told:
            at = high
        for line in () if is_told else part:
            took = took_s(line, count_steps(line.step, before, self.every), self._usual(line), self.every)
            before = line.step
            if line.low != line.high and abs(line.low - at) < DAYS:
                at = line.low
            at = line.high if abs(line.high - at) < DAYS else at + took
        if abs(part.last_stamp - at) < DAYS:
            at = max(at, part.last_stamp)
        # Up to the beginning it does not come only where a clock was put back, as in autumn.
        return at if at > begin else begin + self.spoken(part)

    def attempts(self) -> tuple[list[NamedAttempt], list[str], bool]:
        """Without sacct: an attempt is what a trainer told from one start to the next."""
        parts = [part for part in self.told.parts if len(part)]
        begins = [self.begin(part) for part in parts]
        timed = any(not math.isnan(begin) for begin in begins)
        named, cursor = [], next((begin for begin in begins if not math.isnan(begin)), 0.0)
        for number, (part, begin) in enumerate(zip(parts, begins, strict=True)):
            begin = cursor if math.isnan(begin) else max(begin, cursor)  # noqa: PLW2901 (what it was is of no use)
            cursor = self.end(part, begin)
            following = parts[number + 1] if number + 1 < len(parts) else None
            ending = self._ending(part, following)
            outcome = {SpanEnd.LEFT: "left", SpanEnd.BROKE: "broke off"}.get(ending, "")
            named.append(
                NamedAttempt(attempt=str(number + 1), lived=_lived(begin, cursor, ending, part), outcome=outcome)
            )
        notes = [] if timed else ["the log tells no times: only what steps and saves took is known; --sacct tells more"]
        if timed and len(named) > 1:
            notes.append("what lay between two attempts is unknown: --sacct FILE tells when jobs waited")
        return named, notes, timed

    def _ending(self, part: LogPart, following: LogPart | None) -> SpanEnd:
        """One whose steps were done again by the next lost them, and so did not leave by itself."""
        last = int(part.columns[0][-1])
        if following is None:
            run_ends = (self.told.last and self.told.last.last) or math.inf
            is_over = not math.isnan(part.left) or last >= run_ends
            return SpanEnd.LEFT if is_over else SpanEnd.OPEN
        step = int(following.columns[0][0])
        return SpanEnd.LEFT if step - count_steps(step, None, self.every) >= last else SpanEnd.BROKE


def _lived(begin: float, end: float, ending: SpanEnd, part: LogPart, nodes: int = 0) -> AttemptSpan:
    return AttemptSpan(begin=begin, end=end, ending=ending, told=part, nodes=nodes)


def _by_jobs(
    paced: _Paced, jobs: Sequence[JobRun], since: datetime | None, now: datetime
) -> tuple[list[NamedAttempt], list[IdleSpan], list[str], Window]:
    ran = [job for job in jobs if job.begin is not None]
    if not ran:
        raise InputError("--sacct: none of its jobs has started")
    parts = [part for part in paced.told.parts if len(part)]
    placed = _place(paced, parts, ran)
    ends = [now.timestamp() if job.end is None else job.end for job in ran]
    named = [
        NamedAttempt(
            attempt=job.job, outcome="" if job.end is None else job.state.value, nodes=job.nodes,
            lived=_lived(job.begin or 0.0, end, _ended(job), part, job.node_count),
        )
        for job, part, end in zip(ran, placed, ends, strict=True)
    ]  # fmt: skip
    silent = sum(not len(part) for part in placed)
    notes = [f"{silent} of {len(ran)} jobs have no steps in the log"] if silent else []
    if far := sum(_is_far(paced.begin(part), ran) for part in parts):
        notes.append(
            f"times of {far} of {len(parts)} lives in the log lie days from these jobs: are they of another run?"
        )
    begin = min(time for job in jobs for time in (job.submitted, job.begin) if time is not None)
    window = checked_window(begin, max(ends), since, now)
    return named, list(_waits(jobs, window.end)), notes, window


def _place(paced: _Paced, parts: Sequence[LogPart], ran: Sequence[JobRun]) -> list[LogPart]:
    """What each job told: by the times in the log, else in order, each job taking what fits into its time."""
    placed = [LogPart() for _ in ran]
    at, used = 0, 0.0
    for number, part in enumerate(parts):
        begin, spoken = paced.begin(part), paced.spoken(part)
        inside = [
            n for n, job in enumerate(ran) if n >= at and (job.begin or 0) - 60 <= begin <= (job.end or math.inf) + 60
        ]
        if inside:
            following = max(inside, key=lambda n: (_overlap(ran[n], begin, begin + spoken), n))
        elif len(parts) == len(ran):
            following = max(at, number)
        else:
            following = at
            while following < len(ran) - 1 and used + spoken > 1.05 * _length(ran[following]):
                following, used = following + 1, 0.0
        used = spoken + (used if following == at else 0.0)
        at = following
        placed[at].join(part)
    return placed


def _overlap(job: JobRun, begin: float, end: float) -> float:
    """Seconds that a job was there of what a part took; less than none where it was not."""
    return min(end, job.end or math.inf) - max(begin, job.begin or 0.0)


def _is_far(begin: float, ran: Sequence[JobRun]) -> bool:
    """From every job by more than any two clocks' zones."""
    return all(begin < (job.begin or 0.0) - DAY or begin > (job.end or math.inf) + DAY for job in ran)


def _ended(job: JobRun) -> SpanEnd:
    return SpanEnd.OPEN if job.end is None else _ENDINGS.get(job.state, SpanEnd.BROKE)


def _length(job: JobRun) -> float:
    return math.inf if job.end is None or job.begin is None else job.end - job.begin


def _waits(jobs: Sequence[JobRun], end: float) -> Iterator[IdleSpan]:
    """Queue while any job is submitted and has not started; one that never did waited until it was gone."""
    changes: list[tuple[float, int]] = []
    for job in jobs:
        if job.submitted is not None:
            gone = next((time for time in (job.begin, job.end) if time is not None), end)
            changes += [(job.submitted, 1), (max(gone, job.submitted), -1)]
    waiting = 0
    for (at, change), (until, _) in pairwise([*sorted(changes), (end, 0)]):
        waiting += change
        yield IdleSpan(begin=at, end=until, bucket=Bucket.QUEUE if waiting else Bucket.NOT_QUEUED)
