"""A report as one page of HTML that needs nothing else: no script, no picture, no font, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from opsctl.render import templates_dir
from opsctl.report import formats
from opsctl.report.contents import AttemptReport, Buckets, Report
from opsctl.report.scales import AxisTick, Scale, even, loss_scale, moments
from opsctl.telemetry.progress.effective_time import Bucket
from opsctl.units import format_duration, format_percent, format_time

WIDTH, HEIGHT = 1000.0, 100.0
"""Of drawings, in their own units: they are stretched to what place there is. Text is HTML and is not stretched."""
MOST_LIVES = 200
"""Rows of the table: a page of thousands is read by nobody."""
GOOD = frozenset({"finished", "left", "COMPLETED", "deadline", "stopped", "exited", "killed", "paused"})
BAD = frozenset({"crashed", "timed-out", "node-failed", "hung", "lost", "broke off", "FAILED", "TIMEOUT", "NODE_FAIL",
                 "OUT_OF_MEMORY", "BOOT_FAIL", "refused", "node-refused"})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of a drawing."""

    x: float
    width: float
    y: float = 0.0
    height: float = HEIGHT
    kind: str
    """Its class, which gives it a colour."""
    title: str
    """What is shown where somebody points at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    line: str
    """Points of a polyline."""
    band: str
    """Of a polygon, between the lowest and the highest of each point's steps."""
    y: tuple[AxisTick, ...]
    x: tuple[AxisTick, ...]
    restarts: tuple[Box, ...]
    is_log: bool


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(templates_dir()), undefined=StrictUndefined, autoescape=True, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def render_page(report: Report) -> str:
    """The page, whole."""
    main = formats.ratio(report)
    ratios = {main[0], "without the queue"}
    rows = list(zip(formats.attempt_rows(report), report.attempts, strict=True))
    boxes, ticks = lost_over_time(report)
    return _environment().get_template("report/page.html.j2").render(
        report=report,
        headline=formats.render_headline(report),
        facts=[(name, value) for name, value in formats.facts(report) if name not in ratios],
        ratio=main,
        queueless=format_percent(report.ettr_without_queue) if report.buckets[Bucket.QUEUE] else "",
        shares=[(slug(bucket), bucket.value, format_duration(spent), format_percent(share), formats.MEANING[bucket])
                for bucket, spent, share in formats.shares(report)],
        split=list(split(report.buckets)),
        period=format_duration(report.periods[0].seconds) if report.periods else "",
        columns=boxes,
        column_ticks=ticks,
        attempts=list(timeline(report)),
        moments=moments(report.begin, report.end, is_timed=report.is_timed),
        curve=loss_curve(report),
        names=formats.ATTEMPT_COLUMNS,
        rows=[(row, list(split(attempt.buckets)), attempt_end_label(attempt)) for row, attempt in rows[-MOST_LIVES:]],
        earlier=max(0, len(rows) - MOST_LIVES),
        made=format_time(report.made),
    )  # fmt: skip


def slug(bucket: Bucket) -> str:
    return bucket.value.replace(" ", "-")


def split(buckets: Buckets) -> Iterator[Box]:
    """One bar: training first, then what was lost, the largest first."""
    total, x = sum(buckets.values()), 0.0
    lost = sorted((b for b in buckets if b is not Bucket.EFFECTIVE), key=lambda b: -buckets[b])
    for bucket in (Bucket.EFFECTIVE, *lost):
        if buckets[bucket] > 0:
            width = WIDTH * buckets[bucket] / total
            yield Box(x=x, width=width, kind=slug(bucket), title=_title(bucket, buckets[bucket], total))
            x += width


def lost_over_time(report: Report) -> tuple[list[Box], tuple[AxisTick, ...]]:
    """What each part of the wall-clock lost, the causes upon each other, and the axis: per cent of that part."""
    most = max((_lost(period.buckets) for period in report.periods), default=0.0)
    ticks = even(0, max(0.02, most), 4)
    scale = Scale(low=0.0, high=max(ticks[-1], most * 1.02, 0.02))
    return list(_columns(report, scale)), tuple(AxisTick(100 * scale.at(tick), f"{100 * tick:g}%") for tick in ticks)


def _lost(buckets: Buckets) -> float:
    total = sum(buckets.values())
    return (total - buckets[Bucket.EFFECTIVE]) / total if total else 0.0


def _columns(report: Report, scale: Scale) -> Iterator[Box]:
    width = WIDTH / max(1, len(report.periods))
    for at, period in enumerate(report.periods):
        total, top = sum(period.buckets.values()), HEIGHT
        for bucket in Bucket:
            if period.buckets[bucket] > 0 and bucket is not Bucket.EFFECTIVE:
                height = HEIGHT * scale.at(period.buckets[bucket] / total)
                top -= height
                title = (
                    f"{formats.render_period(report, period.begin)}: {_title(bucket, period.buckets[bucket], total)}"
                )
                yield Box(x=at * width, width=width * 0.9, y=top, height=height, kind=slug(bucket), title=title)


def timeline(report: Report) -> Iterator[Box]:
    """When each attempt was."""
    span = (report.end - report.begin).total_seconds()
    for attempt, row in zip(report.attempts, formats.attempt_rows(report), strict=True):
        begin, length = (attempt.began - report.begin).total_seconds(), (attempt.ended - attempt.began).total_seconds()
        title = f"{attempt.attempt}, {row[1]}, {row[2]}: {row[3]}" + (f"; {attempt.why}" if attempt.why else "")
        yield Box(
            x=WIDTH * begin / span, width=max(1.5, WIDTH * length / span), kind=attempt_end_label(attempt), title=title
        )


def attempt_end_label(attempt: AttemptReport) -> str:
    return "good" if attempt.outcome in GOOD else "bad" if attempt.outcome in BAD else "other"


def loss_curve(report: Report) -> LossCurve | None:
    points = report.loss
    if len(points) < 2:
        return None
    y, y_ticks = loss_scale(min(point.low for point in points), max(point.high for point in points))
    x = Scale(low=points[0].step, high=points[-1].step)
    at = [WIDTH * x.at(point.step) for point in points]

    def path(values: Sequence[float], xs: Sequence[float]) -> str:
        return " ".join(f"{a:.2f},{HEIGHT * (1 - y.at(v)):.2f}" for a, v in zip(xs, values, strict=True))

    highs, lows = [point.high for point in points], [point.low for point in points]
    restarts = tuple(
        Box(
            x=WIDTH * x.at(attempt.first_step),
            width=0,
            kind="restart",
            title=f"{attempt.attempt} goes back to {attempt.first_step:,}",
        )
        for before, attempt in pairwise(report.attempts)
        if before.last_step and attempt.first_step and x.low < attempt.first_step <= before.last_step
    )
    return LossCurve(
        line=path([point.mean for point in points], at), y=y_ticks, x=x.ticks(even(x.low, x.high, 8)), is_log=y.is_log,
        band=f"{path(highs, at)} {path(lows[::-1], at[::-1])}", restarts=restarts,
    )  # fmt: skip


def _title(bucket: Bucket, seconds: float, total: float) -> str:
    return f"{bucket}: {format_duration(seconds)}, {format_percent(seconds / total)}"
