"""The contents of a report, added up from the spans of the effective-time ledger. Pure."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain, pairwise
from statistics import median
from typing import Any

from opsctl.base.nodesets import expand_if_list
from opsctl.nodes.slow_nodes import NodeSpeed
from opsctl.state.drill_score import Drilled
from opsctl.telemetry.progress.bounded_curve import Point
from opsctl.telemetry.progress.effective_time import AttemptSpan, Bucket, IdleSpan, Span, account_time
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.log_formats import EPOCH_PARTS
from opsctl.telemetry.progress.log_summary import LogSummary
from opsctl.telemetry.progress.step_pace import find_missing_steps, log_interval

MAX_MISSING_SHARE = 0.05
"""With a larger share of missing steps, the confidence is low."""
PERIODS = 96
"""The wall-clock time is shown in this many equal parts."""

Buckets = dict[Bucket, float]
"""Seconds by bucket. Every bucket is a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAttempt:
    """An attempt and how it ended."""

    attempt: str
    outcome: str = ""
    """Empty for an attempt that has not ended."""
    why: str = ""
    cause: str = ""
    """The diagnosed cause of its end; empty without a diagnosis."""
    nodes: str = ""
    spares: int = 0  # how many spare nodes waited at its start

    @property
    def named(self) -> dict[str, Any]:
        """The fields of this class."""
        return {field.name: getattr(self, field.name) for field in fields(NamedAttempt)}

    @property
    def end_label(self) -> str:
        """The cause of its end, as far as known."""
        return self.cause or self.outcome or "not ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAttempt(NamedAttempt):
    """An attempt for the ledger."""

    span: AttemptSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReport(NamedAttempt):
    """One attempt within the time of the report."""

    began: datetime
    ended: datetime
    first_step: float | None
    """The step of its first line, in the unit of the report; None without lines."""
    last_step: float | None
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
    """Return the diagnosed cause; empty if the diagnosis found nothing beyond the outcome."""
    return "" if diagnosed in {"nothing", "unknown", "end"} else diagnosed


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
    step: float | None
    """The highest step in the log, in `unit`."""
    last_step: float | None
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
    save_s: float | None = None  # mean time of a save, while training stood still
    drills: tuple[Drilled, ...] = ()
    restarts: int = 0
    """How often the trainer was started again in its allocation."""
    mean_queue_s: float | None = None
    """The mean wait of a task in the queue after an earlier task; None if no task has waited."""
    unit: str = "step"
    """What the steps of this report count: `epoch` of a trainer that logs no steps."""
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
    def saved_s(self) -> float | None:
        """What the restarts in place have saved: as many mean waits in the queue, less the time of the restarts."""
        if self.mean_queue_s is None or not self.restarts:
            return None
        return self.restarts * self.mean_queue_s - self.buckets[Bucket.RESTART]

    @property
    def spares_used(self) -> int:
        """How many restarts in place ran on a spare node in the place of another."""
        allocations = [(name.attempt.rpartition(".")[0], set(expand_if_list(name.nodes))) for name in self.attempts]
        return sum(job == before and bool(nodes - used) for (before, used), (job, nodes) in pairwise(allocations))

    @property
    def losses(self) -> list[tuple[Bucket, float]]:
        """All losses in seconds, the largest first."""
        return sort_losses(self.buckets)


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
    attempts: Sequence[TimedAttempt],
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
    if not summary.counts_epochs and (missing := find_missing_steps(parts, log_interval(parts))):
        notes = [*notes, f"{missing:,} steps are missing in the log; the report assumes the usual time for them"]
        confidence = _lower(confidence, missing / max(1, sum(len(part) for part in parts)))
    if window.until < window.end:
        notes = [*notes, "step, tokens, loss and median step are those of the whole log, also after --until"]
    ledger = account_time([attempt.span for attempt in attempts], waits, begin=window.begin, end=window.end)
    spans = list(_clip(ledger, window))
    buckets, saves = _sum_buckets(spans), sum(span.bucket is Bucket.CHECKPOINT for span in spans)
    spans_of: defaultdict[int | None, list[Span]] = defaultdict(list)
    for span in spans:
        spans_of[span.attempt].append(span)
    reported = [
        (attempt, spans_of[number])
        for number, attempt in enumerate(attempts)
        if spans_of[number] or _is_inside(attempt.span, window)
    ]
    last = summary.last or Iteration(step=0)
    count = (lambda steps: steps / EPOCH_PARTS) if summary.counts_epochs else int
    curves = {name: points for name, curve in summary.curves.items() if (points := curve.points(count))}
    highest_steps = [max(part.steps) for part in parts if len(part)]
    step_seconds = [
        step_s for step_s in chain.from_iterable(part.step_seconds for part in parts) if 0 < step_s < math.inf
    ]
    return Report(
        train=train,
        made=made,
        begin=_date(window.since),
        end=_date(window.until),
        is_timed=window.is_timed,
        wall_s=sum(buckets.values()),
        buckets=buckets,
        step=count(max(highest_steps)) if highest_steps else None,
        last_step=None if last.last is None else count(last.last),
        tokens=last.tokens,
        samples=last.consumed_samples,
        step_s=median(step_seconds) if step_seconds and not summary.counts_epochs else None,
        tflops=median(point.mean for point in curves["tflops"]) if "tflops" in curves else None,
        loss=summary.loss.points(count),
        curves=curves,
        unit="epoch" if summary.counts_epochs else "step",
        notes=tuple(notes),
        is_progress_known=bool(step_seconds) or not any(attempt.span.is_unreadable for attempt in attempts),
        save_s=buckets[Bucket.CHECKPOINT] / saves if saves else None,
        restarts=len({span.before for span in spans if span.bucket is Bucket.RESTART}),
        mean_queue_s=_find_mean_queue(spans),
        causes=_list_causes(spans, attempts, [attempt.end_label for attempt, _ in reported]),
        confidence=confidence,
        periods=_split_periods(spans, window),
        attempts=tuple(_report_attempt(attempt, own, count) for attempt, own in reported),
    )


def _clip(spans: Iterable[Span], window: Window) -> Iterator[Span]:
    """Yield the parts of the spans that lie within the report."""
    for span in spans:
        begin, end = max(span.begin, window.since), min(span.end, window.until)
        if end > begin:
            is_whole = (begin, end) == (span.begin, span.end)
            yield span if is_whole else replace(span, begin=begin, end=end)


def _is_inside(span: AttemptSpan, window: Window) -> bool:
    """Whether --since and --until leave an attempt of no length in the report, as after a clock was set back."""
    is_before = window.since > window.begin and span.end <= window.since
    is_after = window.until < window.end and span.begin >= window.until
    return not (is_before or is_after)


def _sum_buckets(spans: Iterable[Span]) -> Buckets:
    buckets = zero_buckets()
    for span in spans:
        buckets[span.bucket] += span.end - span.begin
    return buckets


def _find_mean_queue(spans: Sequence[Span]) -> float | None:
    """Return the mean wait in the queue between two tasks, in seconds; None if no task has waited."""
    waits = [span for span in spans if span.bucket is Bucket.QUEUE and span.before is not None]
    return sum(span.end - span.begin for span in waits) / len({span.before for span in waits}) if waits else None


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


def _list_causes(
    spans: Iterable[Span], attempts: Sequence[TimedAttempt], ended: Sequence[str]
) -> tuple[CauseReport, ...]:
    """Return the losses by cause, the largest first. `ended` holds the cause of each reported attempt."""
    lost: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.bucket is not Bucket.EFFECTIVE:
            lost[_find_cause(span, attempts)].append(span)
    causes = [
        CauseReport(cause=cause, attempts=ended.count(cause), buckets=_sum_buckets(own)) for cause, own in lost.items()
    ]
    return tuple(sorted(causes, key=lambda cause: -cause.lost_s))


def _find_cause(span: Span, attempts: Sequence[TimedAttempt]) -> str:
    """Return the cause of a loss: a wait, a start and repeated steps follow from the end of the attempt before."""
    if span.bucket in OWN_BUCKETS:
        return OWN
    blamed = span.before if span.attempt is None else span.attempt
    if span.attempt is not None and span.bucket in RESTART_BUCKETS:
        blamed = span.attempt - 1
    return FIRST if blamed is None or blamed < 0 else attempts[blamed].end_label


def _split_periods(spans: Sequence[Span], window: Window) -> tuple[Period, ...]:
    """Return the time of the report in PERIODS equal parts; none for an empty report."""
    if not spans:
        return ()
    period_s = (window.until - window.since) / PERIODS
    buckets = [zero_buckets() for _ in range(PERIODS)]
    for span in spans:
        at, begin = min(PERIODS - 1, int((span.begin - window.since) / period_s)), span.begin
        while begin < span.end:
            edge = window.since + (at + 1) * period_s
            end = span.end if at == PERIODS - 1 else max(begin, min(edge, span.end))
            buckets[at][span.bucket] += end - begin
            at, begin = at + 1, end
    return tuple(
        Period(begin=_date(window.since + at * period_s), seconds=period_s, buckets=of_period)
        for at, of_period in enumerate(buckets)
    )


def _report_attempt(attempt: TimedAttempt, spans: Sequence[Span], count: Callable[[int], float]) -> AttemptReport:
    steps, span = attempt.span.log.steps, attempt.span
    return AttemptReport(
        **attempt.named,
        began=_date(spans[0].begin if spans else span.begin),
        ended=_date(spans[-1].end if spans else span.end),
        first_step=count(steps[0]) if steps else None,
        last_step=count(steps[-1]) if steps else None,
        buckets=_sum_buckets(spans),
    )


def _date(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
