"""The ledger of effective time: every second of a wall-clock is training for the first time, or lost to one cause.

Effective time is what Meta calls productive runtime, over the wall-clock of the job run with its time in the queue
(ETTR, arXiv 2410.21680), and MegaScale "iterations x iteration time / total time" (NSDI'24): steps that had not been
done before, each at the usual time of a step. The causes of loss are those that both subtract (work done again since
the last checkpoint, restarts, saves), and what a chain of jobs adds (queue, held). Pure, and whatever it is given, the
spans tile the window: it walks with a cursor that only goes forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from opsctl.telemetry.progress.log_clock import AttemptClock
from opsctl.telemetry.progress.log_summary import NOTHING, LogPart, LogStep
from opsctl.telemetry.progress.step_pace import count_steps, log_interval, spoken_s, took_s, usual_step_s


class Bucket(StrEnum):
    """What a second was spent on."""

    EFFECTIVE = "training"
    """Steps done for the first time, at the usual time of a step."""
    TWICE = "done twice"
    """Steps that had been done before and were lost with an attempt."""
    SLOW = "slow steps"
    """What steps took beyond the usual time."""
    CHECKPOINT = "checkpoints"
    """Training stood still for a save."""
    EVALUATION = "evaluation"
    START_UP = "start-up"
    """From an attempt's start to its first step; all of an attempt that did no step."""
    HANG = "hang until noticed"
    """From the last step to the end of an attempt that did not leave by itself: a hang, a dead node, a crash."""
    QUEUE = "queue"
    HELD = "held"
    NOT_QUEUED = "nothing queued"
    """Neither running nor submitted."""
    UNKNOWN = "unknown"


class SpanEnd(StrEnum):
    """How an attempt ended, as far as its last seconds are concerned."""

    LEFT = "left"
    """By itself, having saved."""
    BROKE = "broke"
    CUT = "cut"
    """It was taken away while it may have been at work."""
    OPEN = "open"
    """It has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpan:
    """When an attempt was, and what it told. Times in seconds since the epoch."""

    begin: float
    end: float
    ending: SpanEnd
    told: LogPart
    nodes: int = 0
    """How many; lives on as many nodes are held against each other."""
    last_word: float = math.nan
    """When its ranks last said anything, if known."""
    is_torn: bool = False
    """Its log does not begin where it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSpan:
    """Nothing runs. The bucket says why."""

    begin: float
    end: float
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Span:
    begin: float
    end: float
    bucket: Bucket
    attempt: int | None = None
    """Which of the attempts."""


SLOW_FROM = 1.05
"""So much of the usual time makes steps slow. One slow node made all of BLOOM's steps 6 % slower (149 to 140 TFLOPs,
chronicles of tr11-176B); the noise of healthy steps is below."""
UNFINISHED, LEAVING = 3.0, 60.0
"""An attempt that was cancelled, or goes on, so many of its log's intervals, or seconds, after its last line is at
work;
after more it hangs."""


def account_time(
    attempts: Sequence[AttemptSpan], waits: Sequence[IdleSpan], *, begin: float, end: float
) -> Iterator[Span]:
    """What every second between `begin` and `end` was spent on: spans in order, without gap or overlap.

    `attempts` are in the order in which they began; one that overlaps the one before begins when that has ended.
    """
    walk = _Walk(attempts, begin=begin, end=end)
    for number, attempt in enumerate(attempts):
        yield from _waited(walk, waits, attempt.begin)
        yield from walk.live(number, attempt)
    yield from _waited(walk, waits, end)


def _waited(walk: _Walk, waits: Sequence[IdleSpan], until: float) -> Iterator[Span]:
    for wait in waits:
        if wait.end > walk.now and wait.begin < until:
            yield from walk.to(min(wait.begin, until), Bucket.UNKNOWN)
            yield from walk.to(min(wait.end, until), wait.bucket)
    yield from walk.to(until, Bucket.UNKNOWN)


class _Walk:
    """Goes through the window once. Nothing that it is given takes it back, or beyond the end."""

    def __init__(self, attempts: Sequence[AttemptSpan], *, begin: float, end: float) -> None:
        self.now = self.calm = begin
        """`calm` is from when on there was nothing but new steps: their span ends with what comes after them."""
        self.end = self.limit = end
        self.usual = usual_step_s((attempt.told, attempt.nodes) for attempt in attempts)
        self.every = log_interval(attempt.told for attempt in attempts)
        starts = [start for attempt in attempts if (start := self._told_start_up(attempt)) is not None and start >= 0]
        self.start_up = median(starts) if starts else 0.0
        self.highest = 0
        self.attempt: int | None = None

    def to(self, at: float, bucket: Bucket) -> Iterator[Span]:
        at = min(at, self.end)
        if at > self.now:  # which is never true of nan
            yield from self._flush()
            yield Span(self.now, at, bucket, self.attempt)
            self.now = self.calm = at

    def _flush(self) -> Iterator[Span]:
        if self.now > self.calm:
            yield Span(self.calm, self.now, Bucket.EFFECTIVE, self.attempt)
            self.calm = self.now

    def live(self, number: int, attempt: AttemptSpan) -> Iterator[Span]:
        self.attempt, self.end = number, min(max(attempt.end, self.now), self.limit)
        if math.isnan(attempt.told.first_stamp):
            yield from self.to(self.now + self._guessed_start_up(attempt), _gap(None, attempt))
        clock, last, interval = AttemptClock(attempt.begin, attempt.end, attempt.told), None, NOTHING
        for line in attempt.told:
            count = count_steps(line.step, last and last.step, self.every)
            usual = self._usual(line, attempt)
            interval, took = usual * count, took_s(line, count, usual, self.every)
            low, high = clock.read(line, self.now, took)
            end = self.now + took
            is_gap, is_late = low > end + clock.tolerance, high < end - clock.tolerance
            if is_gap or line.is_special or took > interval * SLOW_FROM or line.step - count < self.highest:
                gap = _gap(line if last else None, attempt)
                yield from self._line(line, count, interval, (took, low, high, clock.tolerance), gap)
            else:  # as most lines are
                self.now = max(self.now, min(high if is_late else end, self.end))
            self.highest, last = max(self.highest, line.step), line
        yield from self._tail(attempt, interval if last else None)
        yield from self._flush()
        self.attempt, self.end = None, self.limit

    def _line(
        self, line: LogStep, count: int, interval: float, told: tuple[float, float, float, float], gap: Bucket
    ) -> Iterator[Span]:
        """What went before the steps of a line, and they."""
        (took, low, high, tolerance), stall = told, line.stall
        if 0 < stall < math.inf and not took - interval >= stall / 2:
            # A save that is not in the time of the steps after it, as it is in older Megatrons.
            yield from self.to(self.now + stall, Bucket.CHECKPOINT)
            stall = NOTHING
        if low - took > self.now + tolerance:
            yield from self.to(low - took, gap)
        end = self.now + took
        yield from self._steps(line, count, interval, high if high < end - tolerance else end, stall=stall)

    def _steps(self, line: LogStep, count: int, interval: float, end: float, *, stall: float) -> Iterator[Span]:
        """The steps of a line: first what they took beyond the usual, then those done twice, then the new ones."""
        begin, length = self.now, max(0.0, min(end, self.end) - self.now)
        new = min(count, max(0, line.step - self.highest)) / count
        beyond = length - interval if length > interval * SLOW_FROM else 0.0
        if beyond:
            yield from self.to(begin + min(beyond, stall if stall >= 0 else 0.0), Bucket.CHECKPOINT)
            slow = Bucket.EVALUATION if line.evaluated else Bucket.SLOW if new else Bucket.TWICE
            yield from self.to(begin + beyond, slow)
        yield from self.to(begin + beyond + (length - beyond) * (1 - new), Bucket.TWICE)
        self.now = max(self.now, min(end, self.end))

    def _tail(self, attempt: AttemptSpan, interval: float | None) -> Iterator[Span]:
        """From the last line to the attempt's end; `interval` is what its steps usually take, None if there was
        none."""
        if interval is None:
            yield from self.to(self.end, Bucket.UNKNOWN if attempt.is_torn else Bucket.START_UP)
            return
        stall, at_work = attempt.told.stall, max(LEAVING, UNFINISHED * interval) if interval >= 0 else math.inf
        if math.isfinite(stall) or attempt.ending is SpanEnd.LEFT:
            yield from self.to(self.now + stall, Bucket.CHECKPOINT)
        is_still = attempt.ending in {SpanEnd.CUT, SpanEnd.OPEN} and self.end - self.now > at_work
        yield from self.to(self.end, Bucket.HANG if attempt.ending is SpanEnd.BROKE or is_still else Bucket.UNKNOWN)

    def _spoken(self, attempt: AttemptSpan) -> float:
        return spoken_s(attempt.told, lambda line: self._usual(line, attempt), self.every)

    def _usual(self, line: LogStep, attempt: AttemptSpan) -> float:
        return self.usual.get((line.batch, attempt.nodes), NOTHING)

    def _told_start_up(self, attempt: AttemptSpan) -> float | None:
        """Seconds from its start to its first step, if that can be known."""
        line = next(iter(attempt.told), None)
        if line is None or attempt.is_torn:
            return None
        if math.isnan(attempt.told.first_stamp):
            return attempt.end - attempt.begin - self._spoken(attempt) if attempt.ending is SpanEnd.LEFT else None
        took = took_s(line, count_steps(line.step, None, self.every), self._usual(line, attempt), self.every)
        return (
            AttemptClock(attempt.begin, attempt.end, attempt.told).read(line, attempt.begin, took)[0]
            - took
            - attempt.begin
        )

    def _guessed_start_up(self, attempt: AttemptSpan) -> float:
        """The same where it bears none: what is left besides the steps, if nothing else can have taken it."""
        if not len(attempt.told):
            return 0.0
        spoken = self._spoken(attempt)
        if attempt.ending is SpanEnd.LEFT:
            return self.end - self.now - spoken
        if not math.isnan(attempt.last_word):
            return attempt.last_word - self.now - spoken
        return min(self.start_up, self.end - self.now - spoken)


def _gap(line: LogStep | None, attempt: AttemptSpan) -> Bucket:
    """What there is between the steps of two lines; None is before the first."""
    if line is None:
        return Bucket.UNKNOWN if attempt.is_torn else Bucket.START_UP
    if line.stall == math.inf:
        return Bucket.CHECKPOINT
    return Bucket.EVALUATION if line.evaluated else Bucket.UNKNOWN
