"""The progress of a train as lines for a terminal."""

from __future__ import annotations

from datetime import datetime, timedelta

from opsctl.base.units import format_count, format_duration
from opsctl.telemetry.progress.run_progress import Progress
from opsctl.telemetry.progress.sparkline import sparkline

CURVE_WIDTH = 32
USUAL_PACE_SHARE = 0.02
"""A pace within this share of the median of the run is shown as usual."""


def progress_lines(progress: Progress, now: datetime, *, is_running: bool, ramp: str) -> list[tuple[str, str]]:
    """Return labels and texts. Facts of a running trainer are left out for others."""
    lines = [
        ("progress", _step(progress, now, is_running=is_running)),
        ("loss", _loss(progress, ramp)),
        ("speed", _speed(progress)),
        ("checkpoint", _checkpoint(progress, now, is_running=is_running)),
        ("left", _left(progress, now)),
        ("trainer", progress.note if is_running else ""),
    ]
    return [(label, text) for label, text in lines if text]


def _step(progress: Progress, now: datetime, *, is_running: bool) -> str:
    parts = [f"step {progress.step}"]
    if progress.last_step:
        parts = [f"step {progress.step} of {progress.last_step}", f"{100 * progress.step / progress.last_step:.3g} %"]
    if progress.tokens:
        parts.append(f"{format_count(progress.tokens)} tokens")
    if is_running and progress.phase not in ("", "train"):
        parts.append(f"in {progress.phase}")
    if is_running and progress.at and (now - progress.at).total_seconds() > 60:
        parts.append(f"last heartbeat {format_duration((now - progress.at).total_seconds())} ago")
    return " · ".join(parts)


def _loss(progress: Progress, ramp: str) -> str:
    if progress.loss is None:
        return ""
    curve = sparkline(progress.losses, CURVE_WIDTH, ramp=ramp)
    since = f"{curve} since step {progress.losses_from}" if curve else ""
    return f"{progress.loss:.4g}  {since}".rstrip()


def _speed(progress: Progress) -> str:
    """Compare TFLOPs with the median of the run; without TFLOPs, the step time.

    TFLOPs do not change with the batch size.
    """
    parts = []
    if progress.step_s:
        parts.append(
            f"{progress.step_s:.3g} s a"
            f" step{'' if progress.tflops else _compare(progress.step_s, progress.usual_step_s)}"
        )
    if progress.tflops:
        parts.append(f"{progress.tflops:.3g} TFLOPs{_compare(progress.tflops, progress.usual_tflops)}")
    return " · ".join(parts)


def _compare(recent: float, usual: float | None) -> str:
    if not usual:
        return ""
    share = recent / usual - 1
    if abs(share) < USUAL_PACE_SHARE:
        return " (as usual)"
    return f" ({100 * abs(share):.0f} % {'above' if share > 0 else 'below'} the run's median of {usual:.3g})"


def _checkpoint(progress: Progress, now: datetime, *, is_running: bool) -> str:
    ago = f", {format_duration((now - progress.checkpoint_at).total_seconds())} ago" if progress.checkpoint_at else ""
    parts = [f"at step {progress.checkpoint_step}{ago}"] if progress.checkpoint_step is not None else []
    if is_running and progress.next_save:
        steps = progress.next_save - progress.step
        when = f", in {format_duration(progress.next_save_s)}" if progress.next_save_s else ""
        parts.append(f"next at {progress.next_save}, in {steps} step{'s' * (steps != 1)}{when}")
    return "; ".join(parts) or ("none yet" if is_running else "")


def _left(progress: Progress, now: datetime) -> str:
    if progress.left is None or not progress.left.likely:
        return ""
    left = progress.left
    text = f"{format_duration(left.likely)}, until {_at(now, left.likely)}"
    if left.late - left.early >= 60:
        text += f" ({_at(now, left.early)} to {_at(now, left.late)} in 8 of 10 cases)"
    if left.attempts:
        waits = "" if left.late > left.training else ", queue waits unknown"
        text += f"; {left.attempts} more task{'s' * (left.attempts != 1)}{waits}"
    return text


def _at(now: datetime, seconds: float) -> str:
    return f"{(now + timedelta(seconds=seconds)).astimezone():%Y-%m-%d %H:%M}"
