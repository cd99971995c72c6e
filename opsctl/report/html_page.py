"""A report as one self-contained HTML page, without pictures, fonts or links to other hosts.

Its only script, templates/report/curves.js, is allowed by its hash; without scripts the page shows the same.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from opsctl.base.units import format_duration, format_percent, format_time
from opsctl.diagnosis.causes import causes
from opsctl.launch import render
from opsctl.report import formats
from opsctl.report.contents import AttemptReport, Buckets, Report, sort_losses
from opsctl.report.scales import AxisTick, Scale, even_ticks, loss_scale, time_ticks
from opsctl.telemetry.progress.bounded_curve import Point
from opsctl.telemetry.progress.effective_time import Bucket

WIDTH, HEIGHT = 1000.0, 100.0
"""Size of drawings in their own units. The browser stretches drawings to the page; text is HTML and keeps its shape."""
MIN_BAR_WIDTH = 2.0
"""Of an attempt, however short."""
CURVE_TITLES = {
    "loss": "Loss",
    "grad_norm": "Gradient norm",
    "lr": "Learning rate",
    "tokens_per_s": "Tokens a second, as logged",
    "samples_per_s": "Samples a second",
    "tflops": "TFLOP/s of a GPU",
}
MAX_ATTEMPT_ROWS = 200
"""Rows of the table of attempts: the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of a drawing."""

    x: float
    width: float
    y: float = 0.0
    height: float = HEIGHT
    kind: str
    """CSS class, which sets the colour."""
    title: str
    """Text under the mouse pointer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveDrawing:
    """The drawing of one figure over the steps."""

    title: str
    data: str
    """The points as JSON, for the script."""
    line: str
    """Points of a polyline."""
    band: str
    """Points of a polygon from the lowest to the highest loss of every bin."""
    y: tuple[AxisTick, ...]
    x: tuple[AxisTick, ...]
    restarts: tuple[tuple[float, float, str], ...]
    """Places, steps and texts of the marks."""
    is_log: bool


def render_page(report: Report) -> str:
    script = (render.templates_dir() / "report" / "curves.js").read_text()
    ratio = formats.ratio(report)
    ratios = {ratio[0], "without the queue"}
    boxes, ticks = draw_losses(report)
    groups = {find_group(attempt) for attempt in report.attempts}
    rows = [
        (row, list(draw_split(attempt.buckets)), find_group(attempt), attempt.why)
        for row, attempt in zip(formats.attempt_rows(report), report.attempts, strict=True)
    ]
    return render.render_page(
        "report/page.html.j2",
        report=report,
        headline=formats.render_headline(report),
        facts=[(name, value) for name, value in formats.facts(report) if name not in ratios],
        ratio=ratio,
        queueless=format_percent(report.ettr_without_queue) if report.buckets[Bucket.QUEUE] else "",
        shares=_list_shares(report),
        causes=list(formats.cause_rows(report)) if len(report.causes) > 1 else [],
        cause_names=formats.CAUSE_COLUMNS,
        split=list(draw_split(report.buckets)),
        period=format_duration(report.periods[0].seconds) if report.periods else "",
        columns=boxes,
        column_ticks=ticks,
        attempts=list(_draw_attempts(report)),
        legend=[(group, table["meaning"]) for group, table in formats.END_GROUPS.items() if group in groups],
        moments=time_ticks(report.begin, report.end, is_timed=report.is_timed),
        curves=list(draw_curves(report)),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        names=formats.ATTEMPT_COLUMNS,
        rows=rows[-MAX_ATTEMPT_ROWS:],
        earlier=max(0, len(rows) - MAX_ATTEMPT_ROWS),
        drill_names=formats.DRILL_COLUMNS,
        drills=list(map(formats.drill_row, report.drills)),
        made=format_time(report.made),
    )


def _list_shares(report: Report) -> list[tuple[str, ...]]:
    return [
        (css_class(bucket), bucket.value, format_duration(spent_s), format_percent(share), formats.MEANING[bucket])
        for bucket, spent_s, share in formats.shares(report)
    ]


def css_class(bucket: Bucket) -> str:
    return bucket.value.replace(" ", "-")


def draw_split(buckets: Buckets) -> Iterator[Box]:
    """Yield one bar: training first, then the losses, the largest first."""
    total_s, x = sum(buckets.values()), 0.0
    for bucket, spent_s in [(Bucket.EFFECTIVE, buckets[Bucket.EFFECTIVE]), *sort_losses(buckets)]:
        if spent_s > 0:
            width = WIDTH * spent_s / total_s
            yield Box(x=x, width=width, kind=css_class(bucket), title=_title(bucket, spent_s, total_s))
            x += width


def draw_losses(report: Report) -> tuple[list[Box], tuple[AxisTick, ...]]:
    """Return the stacked losses of every period and the ticks of their axis, in percent of a period."""
    most = max((_lost_share(period.buckets) for period in report.periods), default=0.0)
    ticks = even_ticks(0, max(0.02, most), 4)
    scale = Scale(low=0.0, high=max(ticks[-1], most * 1.02, 0.02))
    return list(_draw_periods(report, scale)), tuple(
        AxisTick(100 * scale.at(tick), f"{100 * tick:g}%") for tick in ticks
    )


def _lost_share(buckets: Buckets) -> float:
    total_s = sum(buckets.values())
    return (total_s - buckets[Bucket.EFFECTIVE]) / total_s if total_s else 0.0


def _draw_periods(report: Report, scale: Scale) -> Iterator[Box]:
    width = WIDTH / max(1, len(report.periods))
    for number, period in enumerate(report.periods):
        total_s, top = sum(period.buckets.values()), HEIGHT
        when = formats.render_period(report, period.begin)
        for bucket in Bucket:
            spent_s = period.buckets[bucket]
            if spent_s <= 0 or bucket is Bucket.EFFECTIVE:
                continue
            height = HEIGHT * scale.at(spent_s / total_s)
            top -= height
            yield Box(
                x=number * width,
                width=width * 0.9,
                y=top,
                height=height,
                kind=css_class(bucket),
                title=f"{when}: {_title(bucket, spent_s, total_s)}",
            )


def _draw_attempts(report: Report) -> Iterator[Box]:
    """Yield a bar for every attempt, from its start to its end."""
    for attempt, row in zip(report.attempts, formats.attempt_rows(report), strict=True):
        title = f"{attempt.attempt}, {row[1]}, {row[2]}: {row[3]}"
        yield draw_attempt(
            report, attempt, kind=find_group(attempt), title=f"{title}; {attempt.why}" if attempt.why else title
        )


def draw_attempt(report: Report, attempt: AttemptReport, *, kind: str, title: str) -> Box:
    """Return an attempt's bar: visible, and within the time of the report."""
    total_s = max((report.end - report.begin).total_seconds(), 1e-9)
    begin_s = (attempt.began - report.begin).total_seconds()
    length_s = (attempt.ended - attempt.began).total_seconds()
    width = min(WIDTH, max(MIN_BAR_WIDTH, WIDTH * length_s / total_s))
    return Box(x=min(max(0.0, WIDTH * begin_s / total_s), WIDTH - width), width=width, kind=kind, title=title)


def find_group(attempt: AttemptReport) -> str:
    """Return the CSS class of an attempt: how it ended."""
    return formats.find_end_group(_kinds().get(attempt.cause, ""), attempt.outcome)


@cache
def _kinds() -> dict[str, str]:
    return {cause.name: cause.kind for cause in causes()}


def draw_curves(report: Report) -> Iterator[CurveDrawing]:
    """Yield the loss and every further figure over the steps that has two points."""
    for name, points in {"loss": report.loss, **report.curves}.items():
        if len(points) > 1:
            yield _draw_curve(report, CURVE_TITLES[name], points)


def _draw_curve(report: Report, title: str, points: Sequence[Point]) -> CurveDrawing:
    low, high = min(point.low for point in points), max(point.high for point in points)
    y, y_ticks = loss_scale(low, high)
    x = Scale(low=points[0].step, high=points[-1].step)
    lows = _place_points(points, [point.low for point in points], x, y)
    means = _place_points(points, [point.mean for point in points], x, y)
    highs = _place_points(points, [point.high for point in points], x, y)
    return CurveDrawing(
        title=title,
        data=_to_data(points, is_log=y.is_log, unit=report.unit),
        line=" ".join(means),
        band=" ".join([*highs, *reversed(lows)]),
        y=y_ticks,
        x=x.ticks(even_ticks(x.low, x.high, 8)),
        restarts=tuple(_mark_restarts(report, x)),
        is_log=y.is_log,
    )


def _to_data(points: Sequence[Point], *, is_log: bool, unit: str) -> str:
    columns: dict[str, object] = {"steps": [point.step for point in points], "log": is_log, "unit": unit}
    for name in ("mean", "low", "high"):
        columns[name] = [float(f"{getattr(point, name):.6g}") for point in points]
    return json.dumps(columns, separators=(",", ":"))


def _place_points(points: Sequence[Point], values: Sequence[float], x: Scale, y: Scale) -> list[str]:
    """Return `x,y` of every point, in units of the drawing."""
    return [
        f"{WIDTH * x.at(point.step):.2f},{HEIGHT * (1 - y.at(value)):.2f}"
        for point, value in zip(points, values, strict=True)
    ]


def _mark_restarts(report: Report, x: Scale) -> Iterator[tuple[float, float, str]]:
    """Yield place, step and text of a mark for every attempt that repeats steps of the attempt before."""
    for before, attempt in pairwise(report.attempts):
        step = attempt.first_step
        if before.last_step and step and x.low < step <= before.last_step:
            yield WIDTH * x.at(step), step, f"{attempt.attempt} goes back to {step:,.10g}"


def _title(bucket: Bucket, seconds: float, total: float) -> str:
    return f"{bucket}: {format_duration(seconds)}, {format_percent(seconds / total)}"
