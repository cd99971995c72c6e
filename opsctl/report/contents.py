"""The contents of a report, added up from the spans of the effective-time ledger. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from statistics import median

from opsctl.nodes.slow_nodes import NodeSpeed
from opsctl.telemetry.progress.bounded_curve import Point
from opsctl.telemetry.progress.effective_time import AttemptSpan, Bucket, IdleSpan, Span, account_time
from opsctl.telemetry.progress.iteration_lines import Iteration
from opsctl.telemetry.progress.log_summary import LogSummary
from opsctl.telemetry.progress.step_pace import find_missing_steps, log_interval

MAX_MISSING_SHARE = 0.05
"""With a larger share of missing steps, the confidence is low."""
PERIODS = 96
"""The wall-clock time is shown in this many equal parts."""

Buckets = dict[Bucket, float]
"""Seconds by bucket. Every bucket is a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport:
    """One attempt within the time of the report."""

    attempt: str
    began: datetime
    ended: datetime
    outcome: str
    """Empty for an attempt that has not ended."""
    why: str
    cause: str
    """The diagnosed cause of its end; empty without a diagnosis."""
    nodes: str
    first_step: int | None
    """The step of its first line; None without lines."""
    last_step: int | None
    buckets: Buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One of PERIODS equal parts of the wall-clock time."""

    begin: datetime
    seconds: float
    buckets: Buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseReport:
    """The time lost to one cause: from the failure on, the restart and the repeated steps included."""

    cause: str
    """The diagnosed cause, else the outcome of the attempts; OWN or FIRST for time that no end of an attempt cost."""
    attempts: int
    """How many attempts ended so."""
    buckets: Buckets

    @property
    def lost_s(self) -> float:
        return sum(self.buckets.values())


OWN = "no failure"
"""Slow steps, saves and evaluations."""
FIRST = "first start"
"""Before the first step of the first attempt."""


def known_cause(diagnosed: str) -> str:
    """Return the diagnosed cause; empty if the diagnosis found nothing."""
    return "" if diagnosed in {"nothing", "unknown"} else diagnosed


class Reliability(StrEnum):
    """How far the shares of a report can be trusted."""

    HIGH = "high"
    """Every attempt has its recorded times."""
    MEDIUM = "medium"
    """The times of the log; what happened outside of it is assumed."""
    LOW = "low"
    """Times of day or steps are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPeriod:
    """The part of a run that a report is on; None: from its beginning, to its end."""

    since: datetime | None = None
    until: datetime | None = None


WHOLE = ReportPeriod()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where the time of a train went. `buckets` add up to `wall_s`."""

    train: str
    made: datetime
    begin: datetime
    end: datetime
    is_timed: bool
    """Whether any time of day is known. If not, only steps and saves have a length, and `begin` has no meaning."""
    wall_s: float
    buckets: Buckets
    step: int | None
    """The highest step in the log."""
    last_step: int | None
    """The step at which the run ends."""
    tokens: int | None
    samples: int | None
    step_s: float | None
    """Median over all lines."""
    tflops: float | None
    """Median for one GPU, over the lines with a figure."""
    loss: tuple[Point, ...]
    curves: dict[str, tuple[Point, ...]]
    """Gradient norm, learning rate and speeds, by the field of Iteration."""
    attempts: tuple[AttemptReport, ...]
    periods: tuple[Period, ...]
    notes: tuple[str, ...] = ()
    """Limits of these figures that the reader must know."""
    causes: tuple[CauseReport, ...] = ()
    """The losses by cause, the largest first. Together they are all losses."""
    confidence: Reliability = Reliability.HIGH
    node_speeds: Mapping[str, NodeSpeed] = field(default_factory=dict)
    """By node: its step times against those of its partners, over all trains. Only nodes with step times."""
    is_progress_known: bool = True
    """Whether any step of the run is known. If not, the share of training is unknown, and not 0."""

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio: productive runtime over wall-clock time, queue included (Meta, 2410.21680).

        None for an empty window, and where the wall-clock time is unknown.
        """
        return self.first_time if self.is_timed else None

    @property
    def first_time(self) -> float | None:
        """First-time training as a share of `wall_s`; None for an empty window, and without any known step."""
        return self.buckets[Bucket.EFFECTIVE] / self.wall_s if self.wall_s > 0 and self.is_progress_known else None

    @property
    def ettr_without_queue(self) -> float | None:
        """The ETTR without the time in the queue."""
        rest_s = self.wall_s - self.buckets[Bucket.QUEUE]
        is_known = self.is_timed and self.is_progress_known and rest_s > 1e-9 * self.wall_s > 0
        return self.buckets[Bucket.EFFECTIVE] / rest_s if is_known else None

    @property
    def losses(self) -> list[tuple[Bucket, float]]:
        """All losses in seconds, the largest first."""
        return sort_losses(self.buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAttempt:
    """An attempt for the ledger, with its name and outcome."""

    attempt: str
    span: AttemptSpan
    outcome: str = ""
    why: str = ""
    nodes: str = ""
    cause: str = ""
    """The diagnosed cause of its end."""

    @property
    def end_label(self) -> str:
        """The cause of its end, as far as known."""
        return self.cause or self.outcome or "not ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Begin and end of the train, and of the report within. Seconds since the epoch."""

    begin: float
    since: float
    until: float
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
    confidence: Reliability = Reliability.HIGH,
) -> Report:
    """Return the report of `window.since` to `window.until`. Earlier steps count as done before."""
    parts = [attempt.span.log for attempt in attempts]
    if missing := find_missing_steps(parts, log_interval(parts)):
        notes = [*notes, f"{missing:,} steps are missing in the log; the report assumes the usual time for them"]
        confidence = _lower(confidence, missing / max(1, sum(len(part) for part in parts)))
    if window.until < window.end:
        notes = [*notes, "step, tokens, loss and median step are those of the whole log, also after --until"]
    spans = account_time([attempt.span for attempt in attempts], waits, begin=window.begin, end=window.end)
    total = _Total(window, attempts)
    total.add_spans(spans)
    last = summary.last or Iteration(step=0)
    highest_steps = [max(part.steps) for part in parts if len(part)]
    step_seconds = [
        step_s for step_s in chain.from_iterable(part.step_seconds for part in parts) if 0 < step_s < math.inf
    ]
    shares = zip(attempts, total.attempts, strict=True)
    reported = [(named, share) for named, share in shares if _is_reported(named.span, share, window)]
    return Report(
        train=train,
        made=made,
        begin=_date(window.since),
        end=_date(window.until),
        is_timed=window.is_timed,
        wall_s=total.wall_s,
        buckets=total.buckets,
        step=int(max(highest_steps)) if highest_steps else None,
        last_step=last.last,
        tokens=last.tokens,
        samples=last.consumed_samples,
        step_s=median(step_seconds) if step_seconds else None,
        tflops=median(summary.tflops.values) if summary.tflops.values else None,
        loss=summary.loss.points(),
        curves={name: curve.points() for name, curve in summary.curves.items()},
        notes=tuple(notes),
        is_progress_known=bool(step_seconds) or not any(named.span.is_unreadable for named in attempts),
        causes=total.list_causes([named.end_label for named, _ in reported]),
        confidence=confidence,
        periods=total.periods(),
        attempts=tuple(_report_attempt(named, share) for named, share in reported),
    )


def _is_reported(span: AttemptSpan, share: _AttemptShare, window: Window) -> bool:
    """Whether an attempt belongs to the report: also one of no length, as after a clock was set back.

    Attempts that --since or --until leave out do not belong to the report.
    """
    is_before = window.since > window.begin and span.end <= window.since
    is_after = window.until < window.end and span.begin >= window.until
    return share.is_known or not (is_before or is_after)


def zero_buckets() -> Buckets:
    return dict.fromkeys(Bucket, 0.0)


def sort_losses(buckets: Buckets) -> list[tuple[Bucket, float]]:
    """Return every loss in seconds, the largest first."""
    losses = [(bucket, loss_s) for bucket, loss_s in buckets.items() if bucket is not Bucket.EFFECTIVE and loss_s > 0]
    return sorted(losses, key=lambda loss: -loss[1])


OWN_BUCKETS = frozenset({Bucket.SLOW, Bucket.CHECKPOINT, Bucket.EVALUATION})
RESTART_BUCKETS = frozenset({Bucket.START_UP, Bucket.REPEATED})


def _lower(confidence: Reliability, missing_share: float) -> Reliability:
    """Return the confidence in a log in which this share of the steps is missing."""
    if missing_share > MAX_MISSING_SHARE:
        return Reliability.LOW
    return Reliability.MEDIUM if confidence is Reliability.HIGH else confidence


class _AttemptShare:
    """The time of one attempt within the report."""

    def __init__(self) -> None:
        self.begin, self.end = float("inf"), float("-inf")
        self.buckets = zero_buckets()

    @property
    def is_known(self) -> bool:
        """Whether any time of the report belongs to the attempt."""
        return self.end > self.begin


class _Total:
    """Sums of spans by bucket: in all, by attempt and by period."""

    def __init__(self, window: Window, attempts: Sequence[NamedAttempt]) -> None:
        self.since, self.until = window.since, window.until
        self.buckets = zero_buckets()
        self.labels = [attempt.end_label for attempt in attempts]
        self.causes: dict[str, Buckets] = {}
        self.attempts = [_AttemptShare() for _ in attempts]
        self.period_s = max(window.until - window.since, 0.0) / PERIODS
        self.period_buckets = [zero_buckets() for _ in range(PERIODS)]

    @property
    def wall_s(self) -> float:
        return sum(self.buckets.values())

    def add_spans(self, spans: Iterable[Span]) -> None:
        for span in spans:
            begin, end = max(span.begin, self.since), min(span.end, self.until)
            if end > begin:
                self.buckets[span.bucket] += end - begin
                self._add_to_periods(begin, end, span.bucket)
                if span.bucket is not Bucket.EFFECTIVE:
                    losses = self.causes.setdefault(self._find_cause(span), zero_buckets())
                    losses[span.bucket] += end - begin
                if span.attempt is not None:
                    share = self.attempts[span.attempt]
                    share.begin, share.end = min(share.begin, begin), end
                    share.buckets[span.bucket] += end - begin

    def _find_cause(self, span: Span) -> str:
        """Return the cause of a loss: a wait, a start and repeated steps follow from the end of the attempt before."""
        if span.bucket in OWN_BUCKETS:
            return OWN
        blamed = span.before if span.attempt is None else span.attempt
        if span.attempt is not None and span.bucket in RESTART_BUCKETS:
            blamed = span.attempt - 1
        return FIRST if blamed is None or blamed < 0 else self.labels[blamed]

    def list_causes(self, ended: Sequence[str]) -> tuple[CauseReport, ...]:
        """Return the losses by cause, the largest first. `ended` holds the cause of each reported attempt."""
        causes = [
            CauseReport(cause=cause, attempts=ended.count(cause), buckets=buckets)
            for cause, buckets in self.causes.items()
        ]
        return tuple(sorted(causes, key=lambda cause: -cause.lost_s))

    def _add_to_periods(self, begin: float, end: float, bucket: Bucket) -> None:
        at = min(PERIODS - 1, int((begin - self.since) / self.period_s))
        while True:
            edge = self.since + (at + 1) * self.period_s if at < PERIODS - 1 else end
            self.period_buckets[at][bucket] += max(0.0, min(edge, end) - begin)
            if edge >= end:
                return
            at, begin = at + 1, max(edge, begin)

    def periods(self) -> tuple[Period, ...]:
        if not self.wall_s:
            return ()
        return tuple(
            Period(begin=_date(self.since + at * self.period_s), seconds=self.period_s, buckets=buckets)
            for at, buckets in enumerate(self.period_buckets)
        )


def _report_attempt(named: NamedAttempt, share: _AttemptShare) -> AttemptReport:
    steps, span = named.span.log.steps, named.span
    return AttemptReport(
        attempt=named.attempt,
        began=_date(share.begin if share.is_known else span.begin),
        ended=_date(share.end if share.is_known else span.end),
        outcome=named.outcome,
        why=named.why,
        cause=named.cause,
        nodes=named.nodes,
        first_step=int(steps[0]) if steps else None,
        last_step=int(steps[-1]) if steps else None,
        buckets=share.buckets,
    )


def _date(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
