"""What a loss curve does: calm, spike, recovery, divergence. Robust statistics, no clock and no files.

The level is the median of a window of lines, the noise their median absolute deviation about the trend. While a spike
lasts, the window stands still, so that the spike does not become the new normal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Any

from opsctl.telemetry.progress.iteration_lines import Iteration

WINDOW = 100
"""Number of log lines that define the level and the noise."""
MIN_LINES = 8
"""Fewer lines define no level."""
JUMP = 6.0
"""A spike is this many deviations above the level twice in a row, or twice as many once."""
FLOOR = 0.01
"""Minimum noise as a share of the level: a very smooth window must not turn every line into a spike."""
SLOW = 20
"""Lines after which a spike is slow to recover."""
LOST = 200
"""Lines after which a higher loss becomes the new level."""
TREND = 20
"""Number of newest lines whose median is compared with the lowest level, to detect divergence without a spike."""
DRIFT, BACK = 4.0, 2.0
"""Deviations above the lowest level at which a divergence starts, and at which the divergence ends."""
DEVIATION = 1.4826
"""Ratio of standard deviation to median absolute deviation of a normal distribution."""


class LossShape(StrEnum):
    """The current shape of the curve."""

    LEARNING = "too few lines"
    CALM = "calm"
    SPIKE = "spike"
    SLOW = "slow recovery"
    DIVERGING = "diverging"
    SETTLED = "at a higher level"
    NAN = "not a number"
    DEAD = "no gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossState:
    """The remembered state of a loss curve."""

    points: tuple[tuple[int, float], ...] = ()
    """Steps and losses of the window."""
    recent: tuple[float, ...] = ()
    """The last losses, also during a spike."""
    step: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    low: float | None = None
    """The lowest level so far."""
    low_step: int = 0
    drifts: bool = False
    """Whether the loss rises from the lowest level without a spike."""
    far: int = 0
    """Number of consecutive lines far above the lowest level."""
    spike_step: int | None = None
    """First step of the current spike."""
    spike_lines: int = 0
    peak: float = 0.0
    above: int = 0
    """Number of consecutive newest lines above the spike threshold."""
    bad: int = 0
    """Number of consecutive newest lines with a loss that is not finite, or with a step skipped for that reason."""
    no_gradient: int = 0
    has_gradient: bool = False
    settled_lines: int = 0
    """Number of further lines for which the new level is reported."""
    before: float = 0.0
    """The level before the new level."""

    @property
    def level(self) -> float | None:
        """The expected loss; None before MIN_LINES lines."""
        return median(loss for _, loss in self.points[-WINDOW // 2 :]) if len(self.points) >= MIN_LINES else None

    @property
    def noise(self) -> float:
        """The usual deviation from the level."""
        losses = [loss for _, loss in self.points]
        half = len(losses) // 2
        middle = median(losses)
        # The window's own slope is learning, not noise.
        slope = (median(losses[half:]) - median(losses[:half])) / max(1, len(losses) - half)
        spread = median(abs(loss - middle - slope * (place - half)) for place, loss in enumerate(losses))
        return max(DEVIATION * spread, FLOOR * abs(middle))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: object) -> LossState:
        """Return the stored state, or an empty one if the stored state is broken."""
        try:
            fields = dict(stored)  # type: ignore[call-overload]  # a wrong type raises TypeError, which is caught
            points = tuple((int(step), float(loss)) for step, loss in fields.pop("points"))
            return cls(**{**fields, "points": points, "recent": tuple(fields.pop("recent"))})
        except (TypeError, ValueError, KeyError):
            return cls()


def advance(curve: LossState, lines: Iterable[Iteration]) -> LossState:
    """Return the state after `lines`."""
    for line in lines:
        curve = _advance_line(curve, line)
    return curve


def _advance_line(curve: LossState, line: Iteration) -> LossState:
    if line.loss is None and not line.nans:
        return curve
    if line.step == curve.step:
        return curve  # the same line twice
    if line.step < curve.step:
        curve = _rolled_back(curve, line.step)
    curve = _gradient(replace(curve, step=line.step), line)
    # For a NaN step a trainer prints no loss, or the previous one.
    if line.loss is None or not math.isfinite(line.loss) or line.nans:
        return replace(curve, bad=curve.bad + 1, loss=line.loss if line.loss is not None else math.nan)
    curve = replace(curve, bad=0, loss=line.loss, recent=(*curve.recent, line.loss)[-TREND:])
    return _drift(_judge_point(curve, line.loss))


def _rolled_back(curve: LossState, step: int) -> LossState:
    """Drop the points after `step`: the train resumed from an earlier checkpoint."""
    return replace(
        curve,
        points=tuple(point for point in curve.points if point[0] < step),
        recent=(),
        spike_step=None,
        spike_lines=0,
        above=0,
        no_gradient=0,
        bad=0,
    )


def _gradient(curve: LossState, line: Iteration) -> LossState:
    """A norm of zero says something only where it was not zero before: some trainers never compute it."""
    if line.grad_norm is None:
        return curve
    is_zero = line.grad_norm == 0
    return replace(
        curve,
        grad_norm=line.grad_norm,
        has_gradient=curve.has_gradient or not is_zero,
        no_gradient=curve.no_gradient + 1 if is_zero else 0,
    )


def _judge_point(curve: LossState, loss: float) -> LossState:
    curve = replace(curve, settled_lines=max(0, curve.settled_lines - 1))
    level = curve.level
    if level is None:
        return _take(curve, loss)
    if curve.spike_step is not None:
        return _in_spike(curve, loss, level)
    excess = (loss - level) / curve.noise
    above = curve.above + 1 if excess > JUMP else 0
    if above >= 2 or excess > 2 * JUMP:
        return replace(curve, spike_step=curve.step, spike_lines=1, peak=loss, above=above)
    return replace(curve, above=above) if above else _take(curve, loss)


def _in_spike(curve: LossState, loss: float, level: float) -> LossState:
    lines = curve.spike_lines + 1
    if median(curve.recent[-3:]) < level + JUMP / 2 * curve.noise:
        # Losses during the spike must not influence the judgement after the spike.
        return _take(replace(curve, spike_step=None, spike_lines=0, above=0, recent=()), loss)
    if lines > LOST and _is_flat(curve.recent):
        fresh = tuple((curve.step, value) for value in curve.recent)
        return replace(
            curve,
            points=fresh,
            spike_step=None,
            spike_lines=0,
            above=0,
            settled_lines=WINDOW,
            before=level,
            low=median(curve.recent),
            low_step=curve.step,
        )
    return replace(curve, spike_lines=lines, peak=max(curve.peak, loss))


def _is_flat(recent: Sequence[float]) -> bool:
    """Return whether the losses neither rise nor fall."""
    half = len(recent) // 2
    before, after = median(recent[:half]), median(recent[half:])
    return abs(after - before) < 2 * FLOOR * abs(before)


def _take(curve: LossState, loss: float) -> LossState:
    """Add a normal line to the window."""
    curve = replace(curve, points=(*curve.points, (curve.step, loss))[-WINDOW:], above=0)
    level = curve.level if len(curve.points) >= WINDOW // 2 else None
    if level is not None and (curve.low is None or level < curve.low):
        return replace(curve, low=level, low_step=curve.step)
    return curve


def _drift(curve: LossState) -> LossState:
    """Detect a lasting rise without a spike, too slow for the window. Short rises are normal."""
    if curve.low is None or len(curve.recent) < TREND:
        return replace(curve, drifts=False, far=0)
    limit = BACK if curve.drifts else DRIFT
    far = curve.far + 1 if median(curve.recent) > curve.low + limit * curve.noise else 0
    return replace(curve, far=far, drifts=far > 0 and (curve.drifts or far >= TREND))


def shape(curve: LossState) -> LossShape:
    """Return the current shape of the curve."""
    for loss_shape, holds in (
        (LossShape.NAN, curve.bad > 0),
        (LossShape.DEAD, curve.has_gradient and curve.no_gradient >= 3),
        (LossShape.LEARNING, curve.level is None),
        (LossShape.DIVERGING, curve.spike_lines > SLOW and _rises(curve)),
        (LossShape.SLOW, curve.spike_lines > SLOW),
        (LossShape.SPIKE, curve.spike_step is not None),
        (LossShape.DIVERGING, curve.drifts),
        (LossShape.SETTLED, curve.settled_lines > 0),
    ):
        if holds:
            return loss_shape
    return LossShape.CALM


def _rises(curve: LossState) -> bool:
    half = len(curve.recent) // 2
    return half > 0 and median(curve.recent[half:]) > median(curve.recent[:half]) + 2 * curve.noise
