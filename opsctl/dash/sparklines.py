"""Small curves as paths of SVG. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.report.scales import Scale, loss_scale

WIDTH, HEIGHT = 200.0, 40.0
"""Size in units of the drawing, which the browser stretches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparkline:
    """The drawing of some values, the oldest first."""

    path: str
    area: str
    """The path, closed at the bottom."""
    gaps: tuple[float, ...]
    """Where a value is nan or infinite."""


def draw_sparkline(values: Sequence[float], *, is_loss: bool = False) -> Sparkline | None:
    """Return the drawing; None for fewer than two finite values. A loss that fell far gets a logarithmic scale."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return None
    low, high = min(known), max(known)
    y = loss_scale(low, high)[0] if is_loss else _linear_scale(low, high)
    places = [WIDTH * number / (len(values) - 1) for number in range(len(values))]
    runs: list[list[str]] = [[]]
    for x, value in zip(places, values, strict=True):
        if math.isfinite(value):
            runs[-1].append(f"{x:.1f} {HEIGHT * (1 - y.at(value)):.1f}")
        elif runs[-1]:
            runs.append([])
    lines = [run for run in runs if run]
    return Sparkline(
        path=" ".join(f"M{' L'.join(run)}" for run in lines),
        area=" ".join(_close(run) for run in lines),
        gaps=tuple(round(x, 1) for x, value in zip(places, values, strict=True) if not math.isfinite(value)),
    )


def _linear_scale(low: float, high: float) -> Scale:
    """Return a scale on which a change of less than a tenth of the value does not look like a cliff."""
    margin = max((high - low) * 0.1, abs(high) * 0.05) or 1.0
    return Scale(low=low - margin, high=high + margin)


def _close(run: list[str]) -> str:
    first, last = run[0].partition(" ")[0], run[-1].partition(" ")[0]
    return f"M{first} {HEIGHT:g} L{' L'.join(run)} L{last} {HEIGHT:g} Z"
