"""The ledger of effective time: assign every second of wall-clock time to first-time training or to one loss.

Effective time is Meta's productive runtime over the wall-clock time of the job run, queue included (ETTR,
arXiv 2410.21680), and MegaScale's "iterations x iteration time / total time" (NSDI'24): steps done for the first time,
at the usual time of a step. Both papers subtract repeated work, restarts and saves; a chain of jobs adds time in the
queue and time on hold. Pure. The spans tile the window for any input, because the cursor only moves forward.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import NamedTuple

from opsctl.telemetry.progress.log_summary import UNKNOWN, LogPart, LogStep
from opsctl.telemetry.progress.step_pace import count_steps, line_s, log_interval, logged_s, usual_step_s

WHOLE_SECONDS_TOLERANCE_S = 1.0
FRACTIONS_TOLERANCE_S = 0.1
"""A logged time may be off by this much, because the trainer rounds the time."""
MAX_OUTSIDE_S = 3600.0
"""A time further before or after its attempt belongs to another clock, or is a date in a text."""
MIN_SETBACK_S = 60.0
"""Smaller steps back are differences between the clocks of ranks; larger ones are a clock that was set back."""
ZONE_STEP_S = 900.0
"""Time zones differ by multiples of 15 minutes."""
MAX_ZONE_DIFFERENCE_S = 26 * 3600.0
"""From UTC-12 to UTC+14."""


@dataclass(slots=True)
class AttemptClock:
    """A clock that never goes back: a clock that was set back continues from its last time."""

    begin: float
    end: float
    log: LogPart
    shift_s: float = field(init=False)

    def __post_init__(self) -> None:
        offset_s = self.begin - self.log.first_stamp
        is_near = -MAX_OUTSIDE_S <= -offset_s <= self.end - self.begin + MAX_OUTSIDE_S
        is_zone = abs(offset_s) < MAX_ZONE_DIFFERENCE_S  # False for nan
        self.shift_s = round(offset_s / ZONE_STEP_S) * ZONE_STEP_S if is_zone and not is_near else 0.0

    @property
    def tolerance_s(self) -> float:
        return FRACTIONS_TOLERANCE_S if self.log.has_fractions else WHOLE_SECONDS_TOLERANCE_S

    def read(self, line: LogStep, now: float, took_s: float) -> tuple[float, float]:
        """Return the earliest and the latest end of the line's steps, nan where unknown."""
        earliest, latest = self._shifted(line.earliest), self._shifted(line.latest)
        is_set_back = latest < now - self.tolerance_s - MIN_SETBACK_S
        if is_set_back:
            self.shift_s += now + took_s - latest
            return UNKNOWN, UNKNOWN
        return earliest, latest

    def _shifted(self, stamp: float) -> float:
        """Return a logged time in the attempt's zone, nan if the time cannot belong to the attempt."""
        at = stamp + self.shift_s
        is_inside = self.begin - MAX_OUTSIDE_S <= at <= self.end + MAX_OUTSIDE_S
        return at if is_inside else UNKNOWN


class Bucket(StrEnum):
    """What a second was spent on."""

    EFFECTIVE = "training"
    """Steps done for the first time, at the usual time of a step."""
    REPEATED = "done twice"
    """Steps that a previous attempt had done and lost."""
    SLOW = "slow steps"
    """Time of steps beyond the usual time."""
    CHECKPOINT = "checkpoints"
    """Training stood still for a save."""
    EVALUATION = "evaluation"
    START_UP = "start-up"
    """From the start of an attempt to its first step; the whole attempt when it did no step."""
    HANG = "hang until noticed"
    """From the last step to the end of an attempt that hung, crashed or lost a node."""
    RESTART = "restart in place"
    """From the decision to keep the allocation to the next start in it."""
    QUEUE = "queue"
    HELD = "held"
    NOT_QUEUED = "nothing queued"
    """No task was running or submitted."""
    UNKNOWN = "unknown"


class SpanEnd(StrEnum):
    """How an attempt ended. This decides the bucket of its last seconds."""

    LEFT = "left"
    """The trainer exited by itself, after a save."""
    BROKE = "broke"
    CUT = "cut"
    """Slurm or a person ended the attempt, possibly during work."""
    OPEN = "open"
    """The attempt has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpan:
    """When an attempt ran, and its part of the log. Times in seconds since the epoch."""

    begin: float
    end: float
    ending: SpanEnd
    log: LogPart
    nodes: int = 0
    """Number of nodes. Only attempts with the same number are compared with each other."""
    last_output: float = math.nan
    """Last write to any log of a rank; nan if unknown."""
    is_truncated: bool = False
    """The beginning of its log is missing."""
    is_unreadable: bool = False
    """Whether the trainer logs its steps in a form that is not known: the attempt may have done any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSpan:
    """A time in which no task ran. The bucket holds the reason."""

    begin: float
    end: float
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds since the epoch, one bucket, and the index of the attempt (None between attempts)."""

    begin: float
    end: float
    bucket: Bucket
    attempt: int | None = None
    before: int | None = None
    """Between attempts: the attempt before, also one of no length; None before the first."""


SLOW_RATIO = 1.05
"""Steps are slow from this multiple of the usual time. One slow node made all of BLOOM's steps 6 % slower (149 to 140
TFLOPs, chronicles of tr11-176B); the noise of healthy steps is below 5 %."""
HANG_INTERVALS = 3.0
"""A cancelled or running attempt hangs when its log is silent for more than this number of its log intervals ..."""
MIN_HANG_S = 60.0
"""... and for more than this time."""


class _LineTiming(NamedTuple):
    """How long the steps of a line took, and when they ended. Times in seconds since the epoch, nan if unknown."""

    steps: int
    usual_s: float
    """The usual time of so many steps."""
    took_s: float
    earliest: float
    latest: float
    tolerance_s: float

    def end(self, begin: float) -> float:
        """Return when the steps ended if they began at `begin`: never after the next time in the log."""
        end = begin + self.took_s
        return self.latest if self.latest < end - self.tolerance_s else end

    def has_gap(self, begin: float) -> bool:
        """Whether the log shows time between `begin` and the first of these steps."""
        return self.earliest > begin + self.took_s + self.tolerance_s


def account_time(
    attempts: Sequence[AttemptSpan], waits: Sequence[IdleSpan], *, begin: float, end: float
) -> Iterator[Span]:
    """Yield spans that cover `begin` to `end` in order, without gap or overlap.

    `attempts` are in the order of their starts. An attempt that overlaps the previous attempt begins at its end.
    """
    timeline = _Timeline(attempts, begin=begin, end=end)
    for number, attempt in enumerate(attempts):
        yield from _add_waits(timeline, waits, attempt.begin)
        yield from timeline.add_attempt(number, attempt)
    yield from _add_waits(timeline, waits, end)


def _add_waits(timeline: "_Timeline", waits: Sequence[IdleSpan], until: float) -> Iterator[Span]:
    for wait in waits:
        if wait.end > timeline.cursor and wait.begin < until:
            yield from timeline.fill_until(min(wait.begin, until), Bucket.UNKNOWN)
            yield from timeline.fill_until(min(wait.end, until), wait.bucket)
    yield from timeline.fill_until(until, Bucket.UNKNOWN)


class _Timeline:
    """A cursor that passes through the window once. No input moves the cursor back or beyond the end."""

    def __init__(self, attempts: Sequence[AttemptSpan], *, begin: float, end: float) -> None:
        self.cursor = begin
        self.effective_from = begin
        """Only new steps since then. Their span is yielded when a different bucket follows."""
        self.window_end = end
        self.end = end
        """End of the current attempt, or of the window."""
        self.usual = usual_step_s((attempt.log, attempt.nodes) for attempt in attempts)
        self.every = log_interval(attempt.log for attempt in attempts)
        known = [self._logged_start_up_s(attempt) for attempt in attempts]
        start_ups = [start_up for start_up in known if start_up is not None and start_up >= 0]
        self.median_start_up_s = median(start_ups) if start_ups else 0.0
        self.highest_step = 0
        self.attempt: int | None = None
        self.before: int | None = None

    def fill_until(self, until: float, bucket: Bucket) -> Iterator[Span]:
        """Assign the time from the cursor to `until`. A time before the cursor, or nan, assigns nothing."""
        until = min(until, self.end)
        if until > self.cursor:
            yield from self._flush()
            yield Span(self.cursor, until, bucket, self.attempt, self.before)
            self.cursor = self.effective_from = until

    def _flush(self) -> Iterator[Span]:
        if self.cursor > self.effective_from:
            yield Span(self.effective_from, self.cursor, Bucket.EFFECTIVE, self.attempt)
            self.effective_from = self.cursor

    def _advance(self, until: float) -> None:
        """Move the cursor over new steps."""
        self.cursor = max(self.cursor, min(until, self.end))

    def add_attempt(self, number: int, attempt: AttemptSpan) -> Iterator[Span]:
        """Yield the spans of an attempt, from the cursor to the end of the attempt."""
        self.attempt = number
        self.end = min(max(attempt.end, self.cursor), self.window_end)
        if math.isnan(attempt.log.first_stamp):
            first_step = self.cursor + self._guess_start_up_s(attempt)
            yield from self.fill_until(first_step, _gap_bucket(None, attempt))
        clock = AttemptClock(attempt.begin, attempt.end, attempt.log)
        previous: LogStep | None = None
        usual_s: float | None = None
        for line in attempt.log:
            timing = self._time_line(line, previous, attempt, clock)
            if self._is_plain(line, timing):  # most lines are
                self._advance(timing.end(self.cursor))
            else:
                gap = _gap_bucket(line if previous else None, attempt)
                yield from self._add_line(line, timing, gap)
            self.highest_step = max(self.highest_step, line.step)
            usual_s, previous = timing.usual_s, line
        yield from self._add_tail(attempt, usual_s)
        yield from self._flush()
        self.attempt, self.before, self.end = None, number, self.window_end

    def _time_line(
        self, line: LogStep, previous: LogStep | None, attempt: AttemptSpan, clock: AttemptClock
    ) -> _LineTiming:
        steps = count_steps(line.step, previous.step if previous else None, self.every)
        usual_s = self._usual_step_s(line, attempt)
        took_s = line_s(line, steps, usual_s, self.every)
        earliest, latest = clock.read(line, self.cursor, took_s)
        return _LineTiming(steps, usual_s * steps, took_s, earliest, latest, clock.tolerance_s)

    def _is_plain(self, line: LogStep, timing: _LineTiming) -> bool:
        """Whether the line reports new steps at the usual time, directly after the line before."""
        is_slow = timing.took_s > timing.usual_s * SLOW_RATIO
        is_repeated = line.step - timing.steps < self.highest_step
        return not (line.is_special or is_slow or is_repeated or timing.has_gap(self.cursor))

    def _add_line(self, line: LogStep, timing: _LineTiming, gap: Bucket) -> Iterator[Span]:
        """Yield the time before the steps of a line, then the steps."""
        stall_s = line.stall_s
        is_in_steps = timing.took_s - timing.usual_s >= stall_s / 2
        if 0 < stall_s < math.inf and not is_in_steps:
            # Older Megatrons do not count a save into the time of the next steps.
            yield from self.fill_until(self.cursor + stall_s, Bucket.CHECKPOINT)
            stall_s = UNKNOWN
        if timing.earliest - timing.took_s > self.cursor + timing.tolerance_s:
            yield from self.fill_until(timing.earliest - timing.took_s, gap)
        yield from self._add_steps(line, timing, stall_s=stall_s)

    def _add_steps(self, line: LogStep, timing: _LineTiming, *, stall_s: float) -> Iterator[Span]:
        """Yield the steps of a line: first the time beyond the usual, then the repeated steps, then the new ones."""
        begin, end = self.cursor, timing.end(self.cursor)
        length_s = max(0.0, min(end, self.end) - begin)
        new_share = min(timing.steps, max(0, line.step - self.highest_step)) / timing.steps
        beyond_s = length_s - timing.usual_s if length_s > timing.usual_s * SLOW_RATIO else 0.0
        if beyond_s:
            save_s = min(beyond_s, stall_s if stall_s >= 0 else 0.0)
            yield from self.fill_until(begin + save_s, Bucket.CHECKPOINT)
            yield from self.fill_until(begin + beyond_s, _slow_bucket(line, has_new=new_share > 0))
        repeated_s = (length_s - beyond_s) * (1 - new_share)
        yield from self.fill_until(begin + beyond_s + repeated_s, Bucket.REPEATED)
        self._advance(end)

    def _add_tail(self, attempt: AttemptSpan, usual_s: float | None) -> Iterator[Span]:
        """Yield the time from the last line to the end. `usual_s` is the usual time of a line, None without lines."""
        if usual_s is None:
            yield from self.fill_until(self.end, _gap_bucket(None, attempt))
            return
        if math.isfinite(attempt.log.stall_s) or attempt.ending is SpanEnd.LEFT:
            yield from self.fill_until(self.cursor + attempt.log.stall_s, Bucket.CHECKPOINT)
        if math.isnan(usual_s):
            # Without step times the time of the last step is unknown; what follows the last output is no training.
            known_end = self.end if math.isnan(attempt.last_output) else attempt.last_output
            yield from self.fill_until(known_end, Bucket.UNKNOWN)
        hang_after_s = math.inf if math.isnan(usual_s) else max(MIN_HANG_S, HANG_INTERVALS * usual_s)
        is_silent = self.end - self.cursor > hang_after_s
        is_hang = attempt.ending is SpanEnd.BROKE or (is_silent and attempt.ending is not SpanEnd.LEFT)
        yield from self.fill_until(self.end, Bucket.HANG if is_hang else Bucket.UNKNOWN)

    def _usual_step_s(self, line: LogStep, attempt: AttemptSpan) -> float:
        return self.usual.get((line.batch, attempt.nodes), UNKNOWN)

    def _logged_s(self, attempt: AttemptSpan) -> float:
        return logged_s(attempt.log, lambda line: self._usual_step_s(line, attempt), self.every)

    def _logged_start_up_s(self, attempt: AttemptSpan) -> float | None:
        """Return the seconds from the start to the first step, None if the log does not show them."""
        line = next(iter(attempt.log), None)
        if line is None or attempt.is_truncated:
            return None
        if math.isnan(attempt.log.first_stamp):
            is_whole = attempt.ending is SpanEnd.LEFT
            return attempt.end - attempt.begin - self._logged_s(attempt) if is_whole else None
        steps = count_steps(line.step, None, self.every)
        took_s = line_s(line, steps, self._usual_step_s(line, attempt), self.every)
        clock = AttemptClock(attempt.begin, attempt.end, attempt.log)
        earliest, _ = clock.read(line, attempt.begin, took_s)
        return earliest - took_s - attempt.begin

    def _guess_start_up_s(self, attempt: AttemptSpan) -> float:
        """Return the start-up time for a log without times: the rest beside the steps, or the median if shorter."""
        if not len(attempt.log):
            return 0.0
        logged = self._logged_s(attempt)
        if attempt.ending is SpanEnd.LEFT:
            return self.end - self.cursor - logged
        if not math.isnan(attempt.last_output):
            return attempt.last_output - self.cursor - logged
        return min(self.median_start_up_s, self.end - self.cursor - logged)


def _slow_bucket(line: LogStep, *, has_new: bool) -> Bucket:
    if line.evaluated:
        return Bucket.EVALUATION
    return Bucket.SLOW if has_new else Bucket.REPEATED


def _gap_bucket(line: LogStep | None, attempt: AttemptSpan) -> Bucket:
    """Return the bucket of the time between the steps of two lines; None stands for the time before the first line."""
    if line is None:
        return Bucket.UNKNOWN if attempt.is_truncated or attempt.is_unreadable else Bucket.START_UP
    if line.stall_s == math.inf:
        return Bucket.CHECKPOINT
    return Bucket.EVALUATION if line.evaluated else Bucket.UNKNOWN
