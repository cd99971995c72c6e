"""What the page of one train shows beyond its card: the report, the attempts by cause, the curves with events."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.alerts.alert_history import AlertEvent, read_alert_history
from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.units import format_duration, format_percent
from opsctl.dash.show_times import format_moment
from opsctl.dash.train_figures import throughput_of
from opsctl.report import formats
from opsctl.report.contents import AttemptReport, Report
from opsctl.report.html_page import Box, css_class, draw_attempt, draw_split
from opsctl.report.scales import AxisTick, time_ticks
from opsctl.report.train_report import TrainReading, read_train
from opsctl.state.events import (
    AttemptStarted,
    Edited,
    Event,
    ExclusionDecided,
    Held,
    HoldReleased,
    RollbackUndone,
    RolledBack,
)
from opsctl.state.journal import replay
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.bounded_curve import BoundedCurve
from opsctl.telemetry.progress.iteration_lines import recent_iterations
from opsctl.telemetry.progress.run_progress import CURVE_LINES, drop_repeated_steps
from opsctl.telemetry.progress.train_settings import read_step_pattern

MAX_ATTEMPTS = 100
"""Rows of the table: the newest."""
MAX_HISTORY = 200
MAX_MARKS = 200
"""Events on the curves: the newest."""
MARKED: Mapping[type[Event], str] = {
    AttemptStarted: "restart",
    Held: "held",
    HoldReleased: "released",
    Edited: "edited",
    ExclusionDecided: "node excluded",
    RolledBack: "rolled back",
    RollbackUndone: "rollback undone",
}
"""Events of the journal that the curves show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt of the strip and of the table."""

    name: str
    number: str
    """`attempt 2`: the place among all attempts."""
    group: str
    began: str
    lasted: str
    end: str
    why: str
    nodes: str
    steps: str
    lost: str
    """The largest losses of time."""
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveMark:
    """An event on the curves."""

    step: float
    kind: str
    text: str
    at: str
    label: str = ""
    """Beside the line; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDetail:
    """The slow part of a train's page, from the whole log."""

    made: datetime
    headline: str
    ratio: tuple[str, str]
    shares: tuple[tuple[str, ...], ...]
    """CSS class, name, time, share."""
    split: tuple[Box, ...]
    causes: tuple[tuple[str, ...], ...]
    attempts: tuple[AttemptRow, ...]
    """The oldest first."""
    groups: tuple[str, ...]
    """The colours of the strip, for the legend."""
    ticks: tuple[AxisTick, ...]
    curves: Mapping[str, object]
    """The data of the curves, as JSON for the browser."""
    alerts: tuple[AlertEvent, ...]
    """The newest first."""
    notes: tuple[str, ...]


def read_detail(app: App, run: RunDir) -> TrainDetail:
    """Read the whole log and the journals. Raises InputError for a train that was never submitted."""
    events, now = app.journal(run).all_events(), app.site_now()
    reading = read_train(run, events, now)
    report = reading.report
    rows = tuple(_list_attempts(report, events))
    history, problems = read_alert_history(app.site_dir.alerts, run.name)
    alerts = history[-MAX_HISTORY:]
    marks = [*_mark_events(report, events), *_mark_alerts(report, alerts)]
    return TrainDetail(
        made=now,
        headline=formats.render_headline(report),
        ratio=formats.ratio(report),
        shares=tuple(
            (css_class(bucket), bucket.value, format_duration(spent_s), format_percent(share))
            for bucket, spent_s, share in formats.shares(report)
        ),
        split=tuple(draw_split(report.buckets)),
        causes=tuple(formats.cause_rows(report)) if report.causes else (),
        attempts=rows[-MAX_ATTEMPTS:],
        groups=tuple(dict.fromkeys(row.group for row in rows)),
        ticks=time_ticks(report.begin, report.end, most=5, is_timed=report.is_timed, zone=now.tzinfo),
        curves=_draw_curves(run, reading, sorted(marks, key=lambda mark: mark.step)[-MAX_MARKS:]),
        alerts=tuple(reversed(alerts)),
        notes=(*report.notes, *problems),
    )


def _list_attempts(report: Report, events: Sequence[Event]) -> Iterator[AttemptRow]:
    diagnosed = replay(list(events)).diagnosed
    for number, attempt in enumerate(report.attempts, 1):
        diagnosis = diagnosed.get(attempt.attempt)
        group = formats.find_end_group(diagnosis.cause_kind if diagnosis else "", attempt.outcome)
        lasted = format_duration(attempt.ended - attempt.began)
        end = attempt.outcome or "running"
        yield AttemptRow(
            name=attempt.attempt,
            number=f"attempt {number}",
            group=group,
            began=format_moment(report.made, attempt.began)
            if report.is_timed
            else formats.render_period(report, attempt.began),
            lasted=lasted,
            end=end,
            why=diagnosis.says if diagnosis else attempt.why,
            nodes=attempt.nodes,
            steps=formats.format_steps(attempt, report.unit),
            lost=formats.list_losses(attempt),
            box=draw_attempt(
                report, attempt, kind=group, title=f"{attempt.attempt}: {end} after {lasted}; {attempt.why}"
            ),
        )


def _mark_events(report: Report, events: Sequence[Event]) -> Iterator[CurveMark]:
    names = {attempt.attempt: attempt for attempt in report.attempts}
    starts = 0
    for event in events:
        kind, step = MARKED.get(type(event)), _find_step(report, event.when)
        starts += isinstance(event, AttemptStarted)
        if kind is None or step is None:
            continue
        text = label = kind
        match event:
            case AttemptStarted():
                attempt = names.get(event.attempt)
                if attempt is None or attempt.first_step is None or starts == 1:
                    continue
                task, step = attempt.attempt.rpartition(".")[0], attempt.first_step
                text = label = f"{task} resumed from {attempt.first_step - 1:,}"
            case RolledBack() | RollbackUndone():
                text = f"{kind}: to step {event.step}"
            case Held() | ExclusionDecided():
                text = f"{kind}: {event.reason}"
        yield CurveMark(step=step, kind=kind, text=text, at=format_moment(report.made, event.when), label=label)
    yield from _mark_failures(report)


def _mark_failures(report: Report) -> Iterator[CurveMark]:
    """Yield the unwanted ends of attempts."""
    for attempt in report.attempts:
        group = formats.find_end_group("", attempt.outcome)
        if attempt.last_step is None or group in {"planned", "person", "running"}:
            continue
        label = f"{attempt.attempt.rpartition('.')[0]} {attempt.outcome.replace('-', ' ')}"
        yield CurveMark(
            step=attempt.last_step,
            kind="end",
            text=f"{label}: {attempt.why}",
            at=format_moment(report.made, attempt.ended),
            label=label,
        )


def _mark_alerts(report: Report, alerts: Sequence[AlertEvent]) -> Iterator[CurveMark]:
    for alert in alerts:
        step = _find_step(report, alert.at) if alert.is_worse else None
        if step is not None:
            yield CurveMark(
                step=step, kind="alert", text=f"{alert.severity}: {alert.text}", at=format_moment(report.made, alert.at)
            )


def _find_step(report: Report, at: datetime) -> float | None:
    """Return about the step at a time: between the first and last step of the attempt, in proportion."""
    before: AttemptReport | None = None
    for attempt in report.attempts:
        if attempt.began > at:
            break
        before = attempt if attempt.last_step is not None else before
    if before is None or before.first_step is None or before.last_step is None:
        return None
    length_s = (before.ended - before.began).total_seconds()
    share = min(1.0, (at - before.began).total_seconds() / length_s) if length_s > 0 else 1.0
    return before.first_step + share * (before.last_step - before.first_step)


def _draw_curves(run: RunDir, reading: TrainReading, marks: Sequence[CurveMark]) -> dict[str, object]:
    """Return the whole run in bins, the newest steps one by one for the zoom, and the events.

    Columns: step, mean, lowest, highest.
    """
    newest = drop_repeated_steps(recent_iterations(run.main_log, CURVE_LINES, read_step_pattern(run)))
    losses = [(line.step, line.loss) for line in newest if line.loss is not None]
    rates = [(line.step, rate) for line in newest if (rate := throughput_of(line)) is not None]
    loss = [(point.step, point.mean, point.low, point.high) for point in reading.report.loss]
    unit = "samples/s" if newest and newest[-1].global_batch else "steps/s"
    return {
        "loss": _pair_columns(loss, losses),
        "pace": _pair_columns(_list_pace(reading), rates),
        "unit": unit,
        "marks": [[mark.step, mark.kind, mark.text, mark.at, mark.label] for mark in marks],
    }


def _pair_columns(
    bins: Sequence[tuple[float, ...]], steps: Sequence[tuple[float, float]]
) -> dict[str, list[list[float | None]]]:
    """Return the columns of the bins and of single steps, which take the place of missing bins."""
    raw = _to_columns([(step, value, value, value) for step, value in steps])
    return {"bins": _to_columns(bins) if len(bins) > 1 else raw, "raw": raw}


def _to_columns(rows: Sequence[tuple[float, ...]]) -> list[list[float | None]]:
    """Return the columns of a table, with None for values that are not finite."""
    columns: list[list[float | None]] = []
    for column in zip(*rows, strict=True):
        columns.append([value if math.isfinite(value) else None for value in column])
    return columns


def _list_pace(reading: TrainReading) -> list[tuple[float, ...]]:
    """Return the throughput over the whole run, as `throughput_of` a line."""
    curve = BoundedCurve()
    for part in reading.parts:
        for step, step_s, batch in zip(part.steps, part.step_seconds, part.batches, strict=True):
            if step_s > 0:
                curve.add(int(step), (batch or 1) / step_s)
    return [(point.step, point.mean, point.low, point.high) for point in curve.points()]


def try_detail(app: App, run: RunDir) -> TrainDetail | str:
    """Return the detail, or why there is none."""
    try:
        return read_detail(app, run)
    except OpsctlError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 (one train of another user must not end the server)
        return f"{type(error).__name__}: {error}"
