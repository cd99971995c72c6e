"""How far a train is, in lines for a terminal."""

from __future__ import annotations

from datetime import datetime, timedelta

from opsctl.telemetry.progress.run_progress import Progress
from opsctl.telemetry.progress.sparkline import sparkline
from opsctl.units import format_count, format_duration

CURVE_WIDTH = 32
TOLD = 0.02
"""A pace that is closer to the run's median is the usual one."""


def progress_lines(seen: Progress, now: datetime, *, is_running: bool, ramp: str) -> list[tuple[str, str]]:
    """Labels and texts. What only a running trainer does is said only of such."""
    lines = [
        ("progress", _step(seen, now, is_running=is_running)),
        ("loss", _loss(seen, ramp)),
        ("speed", _speed(seen)),
        ("checkpoint", _checkpoint(seen, now, is_running=is_running)),
        ("left", _left(seen, now)),
        ("trainer", seen.note if is_running else ""),
    ]
    return [(label, text) for label, text in lines if text]


def _step(seen: Progress, now: datetime, *, is_running: bool) -> str:
    parts = [f"step {seen.step}"]
    if seen.last_step:
        parts = [f"step {seen.step} of {seen.last_step}", f"{100 * seen.step / seen.last_step:.3g} %"]
    if seen.tokens:
        parts.append(f"{format_count(seen.tokens)} tokens")
    if is_running and seen.phase not in ("", "train"):
        parts.append(f"in {seen.phase}")
    if is_running and seen.at and (now - seen.at).total_seconds() > 60:
        parts.append(f"last sign of life {format_duration((now - seen.at).total_seconds())} ago")
    return " · ".join(parts)


def _loss(seen: Progress, ramp: str) -> str:
    if seen.loss is None:
        return ""
    curve = sparkline(seen.losses, CURVE_WIDTH, ramp=ramp)
    since = f"{curve} since step {seen.losses_from}" if curve else ""
    return f"{seen.loss:.4g}  {since}".rstrip()


def _speed(seen: Progress) -> str:
    """TFLOPs against the run's own, for they alone do not change with the batch; else the time of a step."""
    parts = []
    if seen.step_s:
        parts.append(f"{seen.step_s:.3g} s a step{'' if seen.tflops else _against(seen.step_s, seen.usual_step_s)}")
    if seen.tflops:
        parts.append(f"{seen.tflops:.3g} TFLOPs{_against(seen.tflops, seen.usual_tflops)}")
    return " · ".join(parts)


def _against(lately: float, usual: float | None) -> str:
    if not usual:
        return ""
    share = lately / usual - 1
    if abs(share) < TOLD:
        return " (as usual)"
    return f" ({100 * abs(share):.0f} % {'above' if share > 0 else 'below'} the run's median of {usual:.3g})"


def _checkpoint(seen: Progress, now: datetime, *, is_running: bool) -> str:
    ago = f", {format_duration((now - seen.checkpoint_at).total_seconds())} ago" if seen.checkpoint_at else ""
    parts = [f"at step {seen.checkpoint_step}{ago}"] if seen.checkpoint_step is not None else []
    if is_running and seen.next_save:
        steps = seen.next_save - seen.step
        when = f", in {format_duration(seen.next_save_s)}" if seen.next_save_s else ""
        parts.append(f"next at {seen.next_save}, in {steps} step{'s' * (steps != 1)}{when}")
    return "; ".join(parts) or ("none yet" if is_running else "")


def _left(seen: Progress, now: datetime) -> str:
    if seen.left is None or not seen.left.likely:
        return ""
    left = seen.left
    text = f"{format_duration(left.likely)}, until {_at(now, left.likely)}"
    if left.late - left.early >= 60:
        text += f" ({_at(now, left.early)} to {_at(now, left.late)} in 8 of 10 cases)"
    if left.attempts:
        waits = "" if left.late > left.training else ", whose waits are not known yet"
        text += f"; {left.attempts} more task{'s' * (left.attempts != 1)}{waits}"
    return text


def _at(now: datetime, seconds: float) -> str:
    return f"{(now + timedelta(seconds=seconds)).astimezone():%Y-%m-%d %H:%M}"
