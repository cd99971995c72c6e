"""A report in words, rows and JSON, the same for the terminal, Markdown and the page. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from opsctl.errors import InputError
from opsctl.progress.effective import Bucket
from opsctl.report.model import LifeReport, Report

_SPAN = re.compile(r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?", re.ASCII)

MEANING: dict[Bucket, str] = {
    Bucket.EFFECTIVE: "steps done for the first time, at the usual time of a step",
    Bucket.TWICE: "steps that had been done before and were lost with a life",
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


def parse_since(text: str, now: datetime) -> datetime:
    """`2026-03-01`, `2026-03-01 12:00` (local time), or as long ago as `3d`, `12h`, `1d12h`. Raises InputError."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        match = _SPAN.fullmatch(text.strip())
    try:
        weeks, days, hours, minutes = (int(part or 0) for part in match.groups()) if match and text else (0, 0, 0, 0)
        ago = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes)
        if ago:
            return now - ago
    except OverflowError:
        pass
    raise InputError(f"--since {text!r:.40} is not a time", hint="such as 2026-03-01, '2026-03-01 12:00', 3d or 12h")


def to_json(report: Report) -> dict[str, Any]:
    """All of it, with the ratios; every bucket is there, in seconds."""
    return {**asdict(report), "ettr": report.ettr, "ettr_without_queue": report.ettr_without_queue}


def duration(seconds: float) -> str:
    """The two largest units: `3d 04h`, `2h 05m`, `4m 10s`; below a minute in seconds."""
    if seconds < 60:
        return f"{seconds:.3g}s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}h"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {rest:02}s"


def percent(share: float | None) -> str:
    if share is None:
        return "unknown"
    return f"{share:.1%}" if share >= 0.0005 or not share else "< 0.1%"


def count(number: float) -> str:
    """`12.3 M`, `341 G`: with a prefix from a million on."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:,.0f}"


def moment(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}"


def when(report: Report, at: datetime) -> str:
    """A moment of it; where nobody knows when that was, how long after its beginning."""
    return moment(at) if report.is_timed else f"+{duration((at - report.begin).total_seconds())}"


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"


def headline(report: Report) -> str:
    """Of a train that lost something, to what most."""
    if report.first_time is None:
        return "no time has passed"
    if not report.is_timed:
        share, spent = percent(report.first_time), duration(report.wall_s)
        return f"{share} of {spent} of steps and saves was new steps; how long it took in all is not known"
    largest = f"; the most went to {report.losses[0][0]} ({duration(report.losses[0][1])})" if report.losses else ""
    return f"{percent(report.ettr)} of {duration(report.wall_s)} was training{largest}"


def ratio(report: Report) -> tuple[str, str]:
    """The figure that matters most, and its name."""
    return "effective time (ETTR)" if report.is_timed else "new steps", percent(report.first_time)


def facts(report: Report) -> Iterator[tuple[str, str]]:
    """Names and values, as people want to know them first."""
    when = f", {moment(report.begin)} to {moment(report.end)}" if report.is_timed else ""
    yield "wall-clock" if report.is_timed else "time of steps", duration(report.wall_s) + when
    yield ratio(report)
    if report.buckets[Bucket.QUEUE]:
        yield "without the queue", percent(report.ettr_without_queue)
    yield from _progress(report)
    yield "lives", f"{len(report.lives)}"


def _progress(report: Report) -> Iterator[tuple[str, str]]:
    if report.step is not None:
        yield "step", f"{report.step:,}" + (f" of {report.last_step:,}" if report.last_step else "")
    if report.tokens:
        yield "tokens", count(report.tokens)
    elif report.samples:
        yield "samples", count(report.samples)
    if report.loss:
        yield "loss", f"{report.loss[-1].mean:.4g}"
    if report.step_s:
        yield "median step", seconds(report.step_s)
    if report.tflops:
        yield "median TFLOPs a GPU", f"{report.tflops:.4g}"


def shares(report: Report) -> Iterator[tuple[Bucket, float, float]]:
    """Training first, then what was lost, the largest first: seconds, and their share."""
    for bucket, spent in [(Bucket.EFFECTIVE, report.buckets[Bucket.EFFECTIVE]), *report.losses]:
        yield bucket, spent, spent / report.wall_s if report.wall_s else 0.0


def steps(life: LifeReport) -> str:
    return "none" if life.first_step is None else f"{life.first_step:,} to {life.last_step:,}"


def lost(life: LifeReport, most: int = 2) -> str:
    """What this life lost most to."""
    found = sorted(((s, b) for b, s in life.buckets.items() if b is not Bucket.EFFECTIVE and s > 0), reverse=True)
    return ", ".join(f"{bucket} {duration(spent)}" for spent, bucket in found[:most])


def markdown(report: Report) -> str:
    """For a wiki or a pull request."""
    lines = [f"# {_cell(report.train)}", "", f"**{headline(report)}.**", ""]
    lines += [f"- {name}: {_cell(value)}" for name, value in facts(report)]
    lines += ["", "| what | time | share | |", "|---|---:|---:|---|"]
    lines += [f"| {b} | {duration(s)} | {percent(share)} | {MEANING[b]} |" for b, s, share in shares(report)]
    if report.lives:
        lines += ["", "| life | began | lasted | end | nodes | steps | training | lost most to |",
                  "|---|---|---:|---|---|---|---:|---|"]  # fmt: skip
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in life_rows(report)]
    lines += ["", *(f"> {_cell(note)}" for note in report.notes)] if report.notes else []
    return "\n".join([*lines, "", f"Made {moment(report.made)} by `opsctl report`.", ""])


LIFE_COLUMNS = ("life", "began", "lasted", "end", "nodes", "steps", "training", "lost most to")


def life_rows(report: Report) -> list[tuple[str, ...]]:
    return [_life_row(life, report) for life in report.lives]


def _life_row(life: LifeReport, report: Report) -> tuple[str, ...]:
    lasted = (life.ended - life.began).total_seconds()
    return (
        life.life, when(report, life.began), duration(lasted), life.outcome or "not over", life.nodes, steps(life),
        duration(life.buckets[Bucket.EFFECTIVE]), lost(life),
    )  # fmt: skip


def _cell(text: str) -> str:
    """Free text as such: Markdown would take some of it for its own."""
    return re.sub(r"([\\`*_<>\[\]|#])", r"\\\1", re.sub(r"\s+", " ", text))
