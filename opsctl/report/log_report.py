"""The report of a run outside opsctl, from its log and from Slurm's accounting."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, pairwise
from pathlib import Path

from opsctl.base.errors import InputError
from opsctl.report.contents import WHOLE, Reliability, Report, ReportPeriod, TimedAttempt, Window, add_up
from opsctl.report.train_report import SPAN_ENDS, checked_window
from opsctl.slurm.past_jobs import JobRun
from opsctl.telemetry.progress.effective_time import AttemptSpan, Bucket, IdleSpan, SpanEnd
from opsctl.telemetry.progress.log_summary import UNKNOWN, LogPart, LogStep, LogSummary
from opsctl.telemetry.progress.read_log import read_summary
from opsctl.telemetry.progress.step_pace import count_steps, log_interval, logged_s, time_lines, usual_step_s

DAY_S = 86400.0
MAX_STRAY_S = 7 * DAY_S
"""A time further from the steps is a date in a text."""
JOB_MARGIN_S = 60.0
"""The log of a job may begin this much before or after the job."""
MAX_FILL_RATIO = 1.05
"""Logged steps and saves fit into a job up to this multiple of its length."""


def report_log(log: Path, jobs: Sequence[JobRun] | None, now: datetime, *, period: ReportPeriod = WHOLE) -> Report:
    """Return where the time of the run with this log went. `jobs` give the times of its attempts and its waits.

    Raises InputError if there is nothing to report, RunDirError for a log without read permission.
    """
    summary = read_summary(log, follow=True)
    if not summary.lines:
        raise InputError(
            f"{log}: no iteration lines",
            hint="expected lines as Megatron writes them: iteration 20/ 100 | lm loss: 2.0 | …",
        )
    paced = _PacedLog(summary)
    if jobs is not None:
        named, waits, notes, window = _report_jobs(paced, jobs, period, now)
    else:
        waits = []
        named, notes, is_timed = paced.split_attempts()
        window = _log_window(named, period, now, is_timed=is_timed)
    confidence = _judge_confidence(paced, named, has_jobs=jobs is not None, is_timed=window.is_timed)
    return add_up(log.name, named, waits, summary, window, made=now, notes=notes, confidence=confidence)


def _judge_confidence(
    paced: "_PacedLog", named: Sequence[TimedAttempt], *, has_jobs: bool, is_timed: bool
) -> Reliability:
    """Return how far the shares can be trusted: jobs of accounting show what the log leaves out."""
    stamped = [part for part in paced.parts if not math.isnan(paced.find_begin(part))]
    if not is_timed or len(stamped) < len(paced.parts):
        return Reliability.LOW if not has_jobs else Reliability.MEDIUM
    is_whole = has_jobs and all(len(attempt.span.log) for attempt in named)
    return Reliability.HIGH if is_whole else Reliability.MEDIUM


def _log_window(named: Sequence[TimedAttempt], period: ReportPeriod, now: datetime, *, is_timed: bool) -> Window:
    begin = named[0].span.begin
    end = max(attempt.span.end for attempt in named)
    if is_timed:
        return checked_window(begin, end, period, now)
    if period != WHOLE:
        raise InputError("--since, --until: this log has no times", hint="--sacct FILE gives the times of its jobs")
    return Window(begin=begin, since=begin, until=end, end=end, is_timed=False)


class _PacedLog:
    """A log and the usual time of its steps, which replaces the times that the log lacks."""

    def __init__(self, summary: LogSummary) -> None:
        self.summary = summary
        self.usual = usual_step_s((part, 0) for part in summary.parts)
        self.every = log_interval(summary.parts)

    @property
    def parts(self) -> list[LogPart]:
        """The parts with iteration lines."""
        return [part for part in self.summary.parts if len(part)]

    def logged_s(self, part: LogPart) -> float:
        return logged_s(part, self._usual_step_s, self.every)

    def _usual_step_s(self, line: LogStep) -> float:
        return self.usual.get((line.batch, 0), UNKNOWN)

    def find_begin(self, part: LogPart) -> float:
        """Return when a part began, from its first time; nan without times."""
        done_s = 0.0
        for line, took_s in time_lines(part, self._usual_step_s, self.every):
            before_s, done_s = done_s, done_s + took_s
            if line.earliest == line.latest:
                begin = line.earliest - done_s
                return min(part.first_stamp, begin) if begin - part.first_stamp < MAX_STRAY_S else begin
            if not math.isnan(line.earliest):
                return part.first_stamp if before_s == 0.0 else line.earliest - before_s
            if not math.isnan(line.latest):
                by_end = part.last_stamp - self.logged_s(part)
                by_line = line.latest - done_s
                return by_end if by_end < by_line else by_line
        return part.first_stamp

    def find_end(self, part: LogPart, begin: float) -> float:
        """Return when a part ended: its last time, plus the time of the steps after it."""
        end = self._last_step_end(part, begin)
        if abs(part.last_stamp - end) < MAX_STRAY_S:
            end = max(end, part.last_stamp)
        # Only a clock that was set back, as in autumn, ends before it begins.
        return end if end > begin else begin + self.logged_s(part)

    def _last_step_end(self, part: LogPart, begin: float) -> float:
        earliest = part.earliest[-1] if len(part) else UNKNOWN
        latest = part.latest[-1] if len(part) else UNKNOWN
        is_exact = earliest == latest and abs(latest - begin) < MAX_STRAY_S
        if is_exact:  # as in most logs: saves the walk over all lines
            return latest
        end = begin
        for line, took_s in time_lines(part, self._usual_step_s, self.every):
            if line.earliest != line.latest and abs(line.earliest - end) < MAX_STRAY_S:
                end = line.earliest
            end = line.latest if abs(line.latest - end) < MAX_STRAY_S else end + took_s
        return end

    def split_attempts(self) -> tuple[list[TimedAttempt], list[str], bool]:
        """Return attempts, notes, and whether the log has times. An attempt lasts from one start to the next."""
        parts = self.parts
        begins = [self.find_begin(part) for part in parts]
        known_begins = [begin for begin in begins if not math.isnan(begin)]
        named: list[TimedAttempt] = []
        cursor = known_begins[0] if known_begins else 0.0
        for number, part in enumerate(parts):
            begin = cursor if math.isnan(begins[number]) else max(begins[number], cursor)
            cursor = self.find_end(part, begin)
            following = parts[number + 1] if number + 1 < len(parts) else None
            ending = self._find_ending(part, following)
            span = AttemptSpan(begin=begin, end=cursor, ending=ending, log=part)
            outcome = {SpanEnd.LEFT: "left", SpanEnd.BROKE: "broke off"}.get(ending, "")
            named.append(TimedAttempt(attempt=str(number + 1), span=span, outcome=outcome))
        notes = []
        if not known_begins:
            notes.append("the log has no times: only the time of steps and saves is known; --sacct FILE adds the rest")
        elif len(named) > 1:
            notes.append("the time between two attempts is unknown: --sacct FILE shows when jobs waited")
        return named, notes, bool(known_begins)

    def _find_ending(self, part: LogPart, following: LogPart | None) -> SpanEnd:
        """Return how a part ended: an attempt whose steps the next attempt repeats lost them, and so broke off."""
        last_step = int(part.steps[-1])
        if following is None:
            run_ends = (self.summary.last and self.summary.last.last) or math.inf
            is_over = not math.isnan(part.exit_stamp) or last_step >= run_ends
            return SpanEnd.LEFT if is_over else SpanEnd.OPEN
        next_step = int(following.steps[0])
        resumed_at = next_step - count_steps(next_step, None, self.every)
        return SpanEnd.LEFT if resumed_at >= last_step else SpanEnd.BROKE


def _report_jobs(
    paced: "_PacedLog", jobs: Sequence[JobRun], period: ReportPeriod, now: datetime
) -> tuple[list[TimedAttempt], list[IdleSpan], list[str], Window]:
    started = [job for job in jobs if job.begin is not None]
    if not started:
        raise InputError("--sacct: no job has started", hint="give the accounting of the run's jobs")
    parts = paced.parts
    placed = _place_parts(paced, parts, started)
    named = [_name_job(job, part, now) for job, part in zip(started, placed, strict=True)]
    notes = []
    if silent := sum(not len(part) for part in placed):
        notes.append(f"{silent} of {len(started)} jobs have no steps in the log")
    # Further from every job than two time zones can explain.
    spans = [((job.begin or 0.0) - DAY_S, (job.end or math.inf) + DAY_S) for job in started]
    if far := sum(not any(begin <= paced.find_begin(part) <= end for begin, end in spans) for part in parts):
        notes.append(
            f"times of {far} of {len(parts)} attempts in the log are more than a day away from all jobs: "
            "check that the log and the jobs belong to the same run"
        )
    times = chain.from_iterable((job.submitted, job.begin) for job in jobs)
    begin = min(time for time in times if time is not None)
    window = checked_window(begin, max(attempt.span.end for attempt in named), period, now)
    return named, list(_find_waits(jobs, window.end)), notes, window


def _name_job(job: JobRun, part: LogPart, now: datetime) -> TimedAttempt:
    span = AttemptSpan(
        begin=job.begin or 0.0,
        end=now.timestamp() if job.end is None else job.end,
        ending=SpanEnd.OPEN if job.end is None else SPAN_ENDS.get(job.state, SpanEnd.BROKE),
        log=part,
        nodes=job.node_count,
    )
    outcome = "" if job.end is None else job.state.value
    return TimedAttempt(attempt=job.job, span=span, outcome=outcome, nodes=job.nodes)


def _place_parts(paced: "_PacedLog", parts: Sequence[LogPart], started: Sequence[JobRun]) -> list[LogPart]:
    """Return the part of each job: by the times in the log, else in order, as much as fits into the job's time."""
    placed = [LogPart() for _ in started]
    current, used_s = 0, 0.0
    for number, part in enumerate(parts):
        begin, length_s = paced.find_begin(part), paced.logged_s(part)
        spans = [((job.begin or 0.0) - JOB_MARGIN_S, (job.end or math.inf) + JOB_MARGIN_S) for job in started]
        matching = [at for at in range(current, len(started)) if spans[at][0] <= begin <= spans[at][1]]
        if matching:
            chosen = max(matching, key=lambda at: (_overlap_s(started[at], begin, begin + length_s), at))
        elif len(parts) == len(started):
            chosen = max(current, number)
        else:
            chosen = current
            while chosen < len(started) - 1 and used_s + length_s > MAX_FILL_RATIO * _length_s(started[chosen]):
                chosen, used_s = chosen + 1, 0.0
        used_s = length_s + (used_s if chosen == current else 0.0)
        current = chosen
        placed[current].join(part)
    return placed


def _overlap_s(job: JobRun, begin: float, end: float) -> float:
    """Return the seconds that a job and a part share; negative if they do not overlap."""
    return min(end, job.end or math.inf) - max(begin, job.begin or 0.0)


def _length_s(job: JobRun) -> float:
    return math.inf if job.end is None or job.begin is None else job.end - job.begin


def _find_waits(jobs: Sequence[JobRun], end: float) -> Iterator[IdleSpan]:
    """Yield the queue time: a job waits from its submission to its start, or to its end if it never started."""
    changes: list[tuple[float, int]] = []
    for job in jobs:
        if job.submitted is not None:
            left_queue = next((time for time in (job.begin, job.end) if time is not None), end)
            changes += [(job.submitted, 1), (max(left_queue, job.submitted), -1)]
    waiting = 0
    for (at, change), (until, _) in pairwise([*sorted(changes), (end, 0)]):
        waiting += change
        yield IdleSpan(begin=at, end=until, bucket=Bucket.QUEUE if waiting else Bucket.NOT_QUEUED)
