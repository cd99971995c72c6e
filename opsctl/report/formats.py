"""A report in words, rows and JSON, the same for the terminal, Markdown and the page. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from opsctl.report.contents import AttemptReport, Report
from opsctl.telemetry.progress.effective_time import Bucket
from opsctl.units import format_count, format_duration, format_percent, format_step_time, format_time

MEANING: dict[Bucket, str] = {
    Bucket.EFFECTIVE: "steps done for the first time, at the usual time of a step",
    Bucket.TWICE: "steps that had been done before and were lost with an attempt",
    Bucket.SLOW: "what steps took beyond the usual time",
    Bucket.CHECKPOINT: "training stood still for a save",
    Bucket.EVALUATION: "training stood still for an evaluation",
    Bucket.START_UP: "from the start of a task to its first step",
    Bucket.HANG: "from the last step to the end of a task that hung, crashed or lost a node",
    Bucket.QUEUE: "submitted, and Slurm had not started it",
    Bucket.HELD: "submitted, and held",
    Bucket.NOT_QUEUED: "nothing of it was in the queue",
    Bucket.UNKNOWN: "nothing tells what it was spent on",
}


def to_json(report: Report) -> dict[str, Any]:
    """All of it, with the ratios; every bucket is there, in seconds."""
    return {**asdict(report), "ettr": report.ettr, "ettr_without_queue": report.ettr_without_queue}


def render_period(report: Report, at: datetime) -> str:
    """A moment of it; where nobody knows when that was, how long after its beginning."""
    return format_time(at) if report.is_timed else f"+{format_duration((at - report.begin).total_seconds())}"


def render_headline(report: Report) -> str:
    """Of a train that lost something, to what most."""
    if report.first_time is None:
        return "no time has passed"
    if not report.is_timed:
        share, spent = format_percent(report.first_time), format_duration(report.wall_s)
        return f"{share} of {spent} of steps and saves was new steps; how long it took in all is not known"
    summary = f"{format_percent(report.ettr)} of {format_duration(report.wall_s)} was training"
    if not report.losses:
        return summary
    bucket, lost_s = report.losses[0]
    return f"{summary}; the most went to {bucket} ({format_duration(lost_s)})"


def ratio(report: Report) -> tuple[str, str]:
    """The figure that matters most, and its name."""
    return "effective time (ETTR)" if report.is_timed else "new steps", format_percent(report.first_time)


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """Names and values, as people want to know them first."""
    when = f", {format_time(report.begin)} to {format_time(report.end)}" if report.is_timed else ""
    yield "wall-clock" if report.is_timed else "time of steps", format_duration(report.wall_s) + when
    yield ratio(report)
    if report.buckets[Bucket.QUEUE]:
        yield "without the queue", format_percent(report.ettr_without_queue)
    yield from _progress(report)
    yield "attempts", f"{len(report.attempts)}"


def _progress(report: Report) -> Iterator[tuple[str, str]]:
    if report.step is not None:
        yield "step", f"{report.step:,}" + (f" of {report.last_step:,}" if report.last_step else "")
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
    """Training first, then what was lost, the largest first: seconds, and their share."""
    for bucket, spent in [(Bucket.EFFECTIVE, report.buckets[Bucket.EFFECTIVE]), *report.losses]:
        yield bucket, spent, spent / report.wall_s if report.wall_s else 0.0


def steps(attempt: AttemptReport) -> str:
    return "none" if attempt.first_step is None else f"{attempt.first_step:,} to {attempt.last_step:,}"


def list_losses(attempt: AttemptReport, most: int = 2) -> str:
    """What this attempt lost most to."""
    found = sorted(((s, b) for b, s in attempt.buckets.items() if b is not Bucket.EFFECTIVE and s > 0), reverse=True)
    return ", ".join(f"{bucket} {format_duration(spent)}" for spent, bucket in found[:most])


def markdown(report: Report) -> str:
    """For a wiki or a pull request."""
    lines = [f"# {_cell(report.train)}", "", f"**{render_headline(report)}.**", ""]
    lines += [f"- {name}: {_cell(value)}" for name, value in facts(report)]
    lines += ["", "| what | time | share | |", "|---|---:|---:|---|"]
    lines += [
        f"| {b} | {format_duration(s)} | {format_percent(share)} | {MEANING[b]} |" for b, s, share in shares(report)
    ]
    if report.attempts:
        lines += ["", "| attempt | began | lasted | end | nodes | steps | training | lost most to |",
                  "|---|---|---:|---|---|---|---:|---|"]  # fmt: skip
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in attempt_rows(report)]
    lines += ["", *(f"> {_cell(note)}" for note in report.notes)] if report.notes else []
    return "\n".join([*lines, "", f"Made {format_time(report.made)} by `opsctl report`.", ""])


ATTEMPT_COLUMNS = ("attempt", "began", "lasted", "end", "nodes", "steps", "training", "lost most to")


def attempt_rows(report: Report) -> list[tuple[str, ...]]:
    return [_attempt_row(attempt, report) for attempt in report.attempts]


def _attempt_row(attempt: AttemptReport, report: Report) -> tuple[str, ...]:
    lasted = (attempt.ended - attempt.began).total_seconds()
    return (
        attempt.attempt,
        render_period(report, attempt.began),
        format_duration(lasted),
        attempt.outcome or "not over",
        attempt.nodes,
        steps(attempt),
        format_duration(attempt.buckets[Bucket.EFFECTIVE]),
        list_losses(attempt),
    )


def _cell(text: str) -> str:
    """Free text as such: Markdown would take some of it for its own."""
    return re.sub(r"([\\`*_<>\[\]|#])", r"\\\1", re.sub(r"\s+", " ", text))
