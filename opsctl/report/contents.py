"""What a report holds, and how the ledger's spans add up to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from opsctl.telemetry.progress.bounded_curve import Point
from opsctl.telemetry.progress.effective_time import AttemptSpan, Bucket, IdleSpan, Span, account_time
from opsctl.telemetry.progress.iteration_lines import Iteration
from opsctl.telemetry.progress.log_summary import LogSummary
from opsctl.telemetry.progress.step_pace import find_missing_steps, log_interval

PERIODS = 96
"""Equal parts of the wall-clock that are shown side by side."""

Buckets = dict[Bucket, float]
"""Seconds by what they were spent on; every bucket is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """One attempt within the report's wall-clock."""

    attempt: str
    began: datetime
    ended: datetime
    outcome: str
    """Empty for one that has not ended."""
    why: str
    nodes: str
    first_step: int | None
    """Of its first line; None if it told of no step."""
    last_step: int | None
    buckets: Buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """An equal part of the wall-clock."""

    begin: datetime
    seconds: float
    buckets: Buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where the time of a train went. `buckets` add up to `wall_s`."""

    train: str
    made: datetime
    begin: datetime
    end: datetime
    is_timed: bool
    """Whether anything told when; if not, `begin` means nothing, and only what steps took is known."""
    wall_s: float
    buckets: Buckets
    step: int | None
    """The highest that was told of."""
    last_step: int | None
    """The one at which the run ends."""
    tokens: int | None
    samples: int | None
    step_s: float | None
    """Median, over all lines."""
    tflops: float | None
    """Median, of one GPU, over the lines that say it."""
    loss: tuple[Point, ...]
    attempts: tuple[AttemptReport, ...]
    periods: tuple[Period, ...]
    notes: tuple[str, ...] = ()
    """What the reader has to know about these figures."""

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: productive runtime over the wall-clock with the time in the queue (Meta, arXiv
        2410.21680); None for no time at all, and where the wall-clock is not known."""
        return self.first_time if self.is_timed else None

    @property
    def first_time(self) -> float | None:
        """The share of `wall_s`, whatever that is."""
        return self.buckets[Bucket.EFFECTIVE] / self.wall_s if self.wall_s > 0 else None

    @property
    def ettr_without_queue(self) -> float | None:
        """The same of the time in which nobody waited for Slurm."""
        rest = self.wall_s - self.buckets[Bucket.QUEUE]
        return self.buckets[Bucket.EFFECTIVE] / rest if self.is_timed and rest > 1e-9 * self.wall_s > 0 else None

    @property
    def losses(self) -> list[tuple[Bucket, float]]:
        """What was lost, the largest first."""
        lost = [(bucket, seconds) for bucket, seconds in self.buckets.items() if bucket is not Bucket.EFFECTIVE]
        return sorted(((bucket, seconds) for bucket, seconds in lost if seconds > 0), key=lambda each: -each[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAttempt:
    """An attempt for the ledger, and what people call it."""

    attempt: str
    lived: AttemptSpan
    outcome: str = ""
    why: str = ""
    nodes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Seconds since the epoch: where the train began, from when on to report, and to when."""

    begin: float
    since: float
    end: float
    is_timed: bool = True


def add_up(
    train: str,
    attempts: Sequence[NamedAttempt],
    waits: Sequence[IdleSpan],
    summary: LogSummary,
    window: Window,
    *,
    made: datetime,
    notes: Sequence[str] = (),
) -> Report:
    """The report of what lies between `window.since` and `window.end`; what went before tells what is done twice."""
    parts = [attempt.lived.told for attempt in attempts]
    if missing := find_missing_steps(parts, log_interval(parts)):
        notes = [*notes, f"{missing:,} steps are not in the log: they are assumed to have taken the usual time"]
    spans = account_time([attempt.lived for attempt in attempts], waits, begin=window.begin, end=window.end)
    total = _Total(window, len(attempts))
    total.take(spans)
    last = summary.last or Iteration(step=0)
    steps = [column for attempt in attempts if (column := attempt.lived.told.columns[0])]
    seconds = [value for attempt in attempts for value in attempt.lived.told.columns[1] if 0 < value < math.inf]
    return Report(
        train=train,
        made=made,
        begin=_date(window.since),
        end=_date(window.end),
        is_timed=window.is_timed,
        wall_s=total.wall_s,
        buckets=total.buckets,
        step=int(max(map(max, steps))) if steps else None,
        last_step=last.last,
        tokens=last.tokens,
        samples=last.consumed_samples,
        step_s=median(seconds) if seconds else None,
        tflops=median(summary.tflops.values) if summary.tflops.values else None,
        loss=summary.loss.points(),
        notes=tuple(notes),
        periods=total.periods(),
        attempts=tuple(
            _attempt(named, own) for named, own in zip(attempts, total.attempts, strict=True) if own.end > own.begin
        ),
    )


def zero_buckets() -> Buckets:
    return dict.fromkeys(Bucket, 0.0)


class _Own:
    """What was seen of one attempt."""

    def __init__(self) -> None:
        self.begin, self.end = float("inf"), float("-inf")
        self.buckets = zero_buckets()


class _Total:
    def __init__(self, window: Window, attempts: int) -> None:
        self.since, self.end = window.since, window.end
        self.buckets = zero_buckets()
        self.attempts = [_Own() for _ in range(attempts)]
        self.width = max(window.end - window.since, 0.0) / PERIODS
        self.shares = [zero_buckets() for _ in range(PERIODS)]

    @property
    def wall_s(self) -> float:
        return sum(self.buckets.values())

    def take(self, spans: Iterable[Span]) -> None:
        for span in spans:
            begin = max(span.begin, self.since)
            if span.end > begin:
                self.buckets[span.bucket] += span.end - begin
                self._share(begin, span.end, span.bucket)
                if span.attempt is not None:
                    own = self.attempts[span.attempt]
                    own.begin, own.end = min(own.begin, begin), span.end
                    own.buckets[span.bucket] += span.end - begin

    def _share(self, begin: float, end: float, bucket: Bucket) -> None:
        at = min(PERIODS - 1, int((begin - self.since) / self.width))
        while True:
            edge = self.since + (at + 1) * self.width if at < PERIODS - 1 else end
            self.shares[at][bucket] += max(0.0, min(edge, end) - begin)
            if edge >= end:
                return
            at, begin = at + 1, max(edge, begin)

    def periods(self) -> tuple[Period, ...]:
        if not self.wall_s:
            return ()
        return tuple(
            Period(begin=_date(self.since + at * self.width), seconds=self.width, buckets=shares)
            for at, shares in enumerate(self.shares)
        )


def _attempt(named: NamedAttempt, own: _Own) -> AttemptReport:
    steps = named.lived.told.columns[0]
    return AttemptReport(
        attempt=named.attempt, began=_date(own.begin), ended=_date(own.end), outcome=named.outcome, why=named.why,
        nodes=named.nodes, first_step=int(steps[0]) if steps else None, last_step=int(steps[-1]) if steps else None,
        buckets=own.buckets,
    )  # fmt: skip


def _date(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
