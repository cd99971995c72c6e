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
"""Log lines that make the level and the noise."""
ENOUGH = 8
"""Fewer lines say nothing of what is normal."""
JUMP = 6.0
"""So many deviations above the level twice in a row, or twice as many once, are a spike."""
FLOOR = 0.01
"""Noise is taken to be at least this share of the level: a window that is too smooth must not see spikes everywhere."""
SLOW = 20
"""Lines after which a spike is slow to recover."""
LOST = 200
"""Lines after which a loss that is still above is not expected back: that is the level now."""
TREND = 20
"""Lines whose median is held against the lowest level that there was, to see a divergence without a spike."""
DRIFT, BACK = 4.0, 2.0
"""So many deviations above it are a divergence, and so many are none any more."""
DEVIATION = 1.4826
"""From a median absolute deviation to the standard deviation of a bell curve."""


class LossShape(StrEnum):
    """What the curve does now."""

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
    """All that is kept of a curve."""

    points: tuple[tuple[int, float], ...] = ()
    """Steps and losses of the window."""
    recent: tuple[float, ...] = ()
    """The last losses, whatever they were."""
    step: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    low: float | None = None
    """The lowest level that there was."""
    low_step: int = 0
    drifts: bool = False
    """Whether it rises from its lowest level, without a spike."""
    far: int = 0
    """For how many lines it has been far above that."""
    spike_step: int | None = None
    """Where the spike that lasts now began."""
    spike_lines: int = 0
    peak: float = 0.0
    above: int = 0
    """How many of the last lines in a row were above."""
    bad: int = 0
    """How many of the last lines in a row were no number, or had a step that was not taken for that."""
    no_gradient: int = 0
    has_gradient: bool = False
    settled_lines: int = 0
    """How many more lines to say that the level is another one."""
    before: float = 0.0
    """The level that there was before that."""

    @property
    def level(self) -> float | None:
        """What the loss should be about now."""
        return median(loss for _, loss in self.points[-WINDOW // 2 :]) if len(self.points) >= ENOUGH else None

    @property
    def noise(self) -> float:
        """How far it usually is from that."""
        losses = [loss for _, loss in self.points]
        half = len(losses) // 2
        middle = median(losses)
        # A window falls as a whole while the model learns: that is no noise.
        slope = (median(losses[half:]) - median(losses[:half])) / max(1, len(losses) - half)
        spread = median(abs(loss - middle - slope * (place - half)) for place, loss in enumerate(losses))
        return max(DEVIATION * spread, FLOOR * abs(middle))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, kept: object) -> LossState:
        """What was kept, or a curve of which nothing is known."""
        try:
            datas = dict(kept)  # type: ignore[call-overload]  # whatever is no mapping raises, and is caught
            points = tuple((int(step), float(loss)) for step, loss in datas.pop("points"))
            return cls(**{**datas, "points": points, "recent": tuple(datas.pop("recent"))})
        except (TypeError, ValueError, KeyError):
            return cls()


def advance(curve: LossState, lines: Iterable[Iteration]) -> LossState:
    """The curve after these lines."""
    for line in lines:
        curve = _one(curve, line)
    return curve


def _one(curve: LossState, line: Iteration) -> LossState:
    if line.loss is None and not line.nans:
        return curve
    if line.step == curve.step:
        return curve  # said twice
    if line.step < curve.step:
        curve = _rolled_back(curve, line.step)
    curve = _gradient(replace(curve, step=line.step), line)
    # A trainer prints no loss at all, or a stale one, for a step that was nan.
    if line.loss is None or not math.isfinite(line.loss) or line.nans:
        return replace(curve, bad=curve.bad + 1, loss=line.loss if line.loss is not None else math.nan)
    curve = replace(curve, bad=0, loss=line.loss, recent=(*curve.recent, line.loss)[-TREND:])
    return _drift(_judge_point(curve, line.loss))


def _rolled_back(curve: LossState, step: int) -> LossState:
    """An earlier checkpoint goes on: what came after it is not true any more."""
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
        # What was seen during the spike says nothing of what comes after it.
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
    """Neither rising nor falling any more."""
    half = len(recent) // 2
    before, after = median(recent[:half]), median(recent[half:])
    return abs(after - before) < 2 * FLOOR * abs(before)


def _take(curve: LossState, loss: float) -> LossState:
    """A line that is as it should be: it belongs to the window."""
    curve = replace(curve, points=(*curve.points, (curve.step, loss))[-WINDOW:], above=0)
    level = curve.level if len(curve.points) >= WINDOW // 2 else None
    if level is not None and (curve.low is None or level < curve.low):
        return replace(curve, low=level, low_step=curve.step)
    return curve


def _drift(curve: LossState) -> LossState:
    """A rise without a spike, too slow for the window to see it. It has to last: some losses wander."""
    if curve.low is None or len(curve.recent) < TREND:
        return replace(curve, drifts=False, far=0)
    limit = BACK if curve.drifts else DRIFT
    far = curve.far + 1 if median(curve.recent) > curve.low + limit * curve.noise else 0
    return replace(curve, far=far, drifts=far > 0 and (curve.drifts or far >= TREND))


def shape(curve: LossState) -> LossShape:
    """What it does now."""
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
