"""A report as text, rows and JSON, shared by the terminal, Markdown and HTML. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from opsctl.base.tables import read_package_table
from opsctl.base.units import format_count, format_duration, format_percent, format_step_time, format_time
from opsctl.report.contents import AttemptReport, Reliability, Report, sort_losses
from opsctl.state.drill_score import Drilled
from opsctl.telemetry.progress.effective_time import Bucket

_MEANINGS = read_package_table("report/meanings.toml")
MEANING = {Bucket(name): text for name, text in _MEANINGS["time"].items()}
CONFIDENCE = {Reliability(name): text for name, text in _MEANINGS["confidence"].items()}
MAX_SLOW_NODES = 5
END_GROUPS: dict[str, dict[str, Any]] = read_package_table("report/end_groups.toml")


def find_end_group(cause_kind: str, outcome: str) -> str:
    """Return the group of an attempt's end, by the class of the diagnosed cause, else by the outcome."""
    for end in (cause_kind, outcome):
        for group, table in END_GROUPS.items():
            if end in table["ends"]:
                return group
    return "unknown" if outcome else "running"


def to_json(report: Report) -> dict[str, Any]:
    """Return the whole report with its ratios. Every bucket is present, in seconds."""
    names = ("ettr", "ettr_without_queue", "saved_s", "spares_used")
    return {**asdict(report), "spare_node_s": sum_spares(report), **{name: getattr(report, name) for name in names}}


def sum_spares(report: Report) -> float:
    """Return for how many seconds spare nodes waited, at most: returned ones count until the end of the attempt."""
    return sum(attempt.spares * (attempt.ended - attempt.began).total_seconds() for attempt in report.attempts)


def render_period(report: Report, at: datetime) -> str:
    """Return a time within the report; without known times of day, the time since the beginning."""
    return format_time(at) if report.is_timed else f"+{format_duration((at - report.begin).total_seconds())}"


def render_headline(report: Report) -> str:
    """Return one sentence: the effective share and the largest loss."""
    if not report.is_progress_known:
        return f"how much of {format_duration(report.wall_s)} was training is unknown: the log shows no step times"
    if report.first_time is None:
        return "no time has passed"
    if not report.is_timed:
        share, spent = format_percent(report.first_time), format_duration(report.wall_s)
        return f"{share} of {spent} of steps and saves was new steps; the wall-clock time is unknown"
    summary = f"{format_percent(report.ettr)} of {format_duration(report.wall_s)} was training"
    if not report.losses:
        return summary
    bucket, lost_s = report.losses[0]
    return f"{summary}; largest loss: {bucket} ({format_duration(lost_s)})"


def ratio(report: Report) -> tuple[str, str]:
    """Return the name and the value of the main figure."""
    return "effective time (ETTR)" if report.is_timed else "new steps", format_percent(report.first_time)


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """Yield names and values, the most important first."""
    wall_clock = format_duration(report.wall_s)
    if report.is_timed:
        yield "wall-clock", f"{wall_clock}, {format_time(report.begin)} to {format_time(report.end)}"
    else:
        yield "time of steps", wall_clock
    yield ratio(report)
    if report.buckets[Bucket.QUEUE]:
        yield "without the queue", format_percent(report.ettr_without_queue)
    yield from _progress(report)
    yield "attempts", f"{len(report.attempts)}"
    if report.restarts:
        yield "restarts in place", _describe_restarts(report)
    if spare_s := sum_spares(report):
        yield "idle spare nodes", f"{spare_s / 3600:,.1f} node-hours at most"
    if report.node_speeds:
        slow = {node: speed for node, speed in report.node_speeds.items() if speed.is_slow}
        parts = [f"{node} {speed}, {speed.attempts} attempts" for node, speed in list(slow.items())[:MAX_SLOW_NODES]]
        more = f"; and {len(slow) - MAX_SLOW_NODES} more" if len(slow) > MAX_SLOW_NODES else ""
        yield "slow nodes", f"{'; '.join(parts) or 'none'}{more} ({len(report.node_speeds)} nodes with step times)"
    if report.confidence is not Reliability.HIGH:
        yield "confidence", f"{report.confidence.value}: {CONFIDENCE[report.confidence]}"


def _describe_restarts(report: Report) -> str:
    spares = f", {report.spares_used} with a spare node" if report.spares_used else ""
    lost = f"{report.restarts}{spares}, {format_duration(report.buckets[Bucket.RESTART])} between two starts"
    if report.saved_s is None or report.mean_queue_s is None:
        return f"{lost}; what they saved is unknown: no task has waited in the queue after another"
    saved = f"{'saved' if report.saved_s >= 0 else 'cost'} {format_duration(report.saved_s)}"
    return f"{lost}; {saved}: a task waits {format_duration(report.mean_queue_s)}"


def _progress(report: Report) -> Iterator[tuple[str, str]]:
    if report.step is not None:
        yield report.unit, f"{report.step:,.10g}" + (f" of {report.last_step:,.10g}" if report.last_step else "")
    if report.tokens:
        yield "tokens", format_count(report.tokens)
    elif report.samples:
        yield "samples", format_count(report.samples)
    if report.loss:
        yield "loss", f"{report.loss[-1].mean:.4g}"
    if report.step_s:
        yield "median step", format_step_time(report.step_s)
    if report.tflops:
        yield "median TFLOPs a GPU", f"{report.tflops:.4g}"


def shares(report: Report) -> Iterator[tuple[Bucket, float, float]]:
    """Yield bucket, seconds and share: training first, if it is known, then the losses, the largest first."""
    training = [(Bucket.EFFECTIVE, report.buckets[Bucket.EFFECTIVE])] if report.is_progress_known else []
    for bucket, spent_s in [*training, *report.losses]:
        yield bucket, spent_s, spent_s / report.wall_s if report.wall_s else 0.0


def format_steps(attempt: AttemptReport, unit: str) -> str:
    if attempt.first_step is None:
        return "none"
    return f"{'epoch ' * (unit == 'epoch')}{attempt.first_step:,.10g} to {attempt.last_step:,.10g}"


def list_losses(attempt: AttemptReport, most: int = 2) -> str:
    """Return the largest losses of an attempt, at most `most`."""
    losses = sort_losses(attempt.buckets)[:most]
    return ", ".join(f"{bucket} {format_duration(loss_s)}" for bucket, loss_s in losses)


def markdown(report: Report) -> str:
    """Return the report as Markdown, for a wiki or a pull request."""
    lines = [f"# {_cell(report.train)}", "", f"**{render_headline(report)}.**", ""]
    lines += [f"- {name}: {_cell(value)}" for name, value in facts(report)]
    lines += ["", "| time spent on | time | share | |", "|---|---:|---:|---|"]
    for bucket, spent_s, share in shares(report):
        lines.append(f"| {bucket} | {format_duration(spent_s)} | {format_percent(share)} | {MEANING[bucket]} |")
    if len(report.causes) > 1:
        lines += ["", render_rows(CAUSE_COLUMNS, cause_rows(report), "---|---:|---:|---:|---|")]
    if report.attempts:
        lines += ["", render_rows(ATTEMPT_COLUMNS, attempt_rows(report), "---|---|---:|---|---|---|---:|---|")]
    if report.drills:
        lines += ["", render_rows(DRILL_COLUMNS, map(drill_row, report.drills))]
    if report.notes:
        lines += ["", *(f"> {_cell(note)}" for note in report.notes)]
    return "\n".join([*lines, "", f"Made {format_time(report.made)} by `opsctl report`.", ""])


CAUSE_COLUMNS = ("lost to", "attempts", "time", "share", "of this")


def cause_rows(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield a row for each cause: the attempts that ended so, the time lost to it, and the largest phases."""
    for cause in report.causes:
        phases = [f"{bucket} {format_duration(spent_s)}" for bucket, spent_s in sort_losses(cause.buckets)[:3]]
        share = cause.lost_s / report.wall_s if report.wall_s else 0.0
        attempts = str(cause.attempts) if cause.attempts else ""
        yield cause.cause, attempts, format_duration(cause.lost_s), format_percent(share), ", ".join(phases)


ATTEMPT_COLUMNS = ("attempt", "began", "lasted", "end", "nodes", "steps", "training", "largest losses")


def attempt_rows(report: Report) -> list[tuple[str, ...]]:
    return [_attempt_row(attempt, report) for attempt in report.attempts]


def _attempt_row(attempt: AttemptReport, report: Report) -> tuple[str, ...]:
    lasted_s = (attempt.ended - attempt.began).total_seconds()
    return (
        attempt.attempt,
        render_period(report, attempt.began),
        format_duration(lasted_s),
        attempt.outcome or "still open",
        attempt.nodes,
        format_steps(attempt, report.unit),
        format_duration(attempt.buckets[Bucket.EFFECTIVE]) if report.is_progress_known else "unknown",
        list_losses(attempt),
    )


DRILL_COLUMNS = ("fault", "noticed", "cause", "action", "alert", "steps lost", "training after", "result")


def drill_row(drilled: Drilled) -> tuple[str, ...]:
    """Return a row of the score card."""
    noticed, back = ("-" if time_s is None else f"{time_s:.0f} s" for time_s in (drilled.noticed_s, drilled.back_s))
    to_whom = ", ".join(drilled.recipients or drilled.channels) or "nobody"
    alert = f"{', '.join(drilled.alerts)} to {to_whom}" if drilled.alerts else "none"
    lost = "-" if drilled.steps_lost is None else str(drilled.steps_lost)
    result = f"wrong: {', '.join(drilled.wrong)}" if drilled.wrong else "right"
    if drilled.why:
        result = f"not drilled: {drilled.why}"
    return drilled.fault, noticed, drilled.cause or "none", drilled.action or "none", alert, lost, back, result


def render_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], rule: str = "") -> str:
    """Return a Markdown table. `rule` aligns the columns; by default, all to the left."""
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(columns)} |", f"|{rule or '---|' * len(columns)}", *lines])


def _cell(text: str) -> str:
    """Return free text with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_<>\[\]|#])", r"\\\1", re.sub(r"\s+", " ", text))
