"""What a loss curve does: calm, spike, recovery, divergence. Robust statistics, no clock and no files.

The level is the median of a window of lines, the noise their median absolute deviation about the trend. While a spike
lasts, the window stands still, so that the spike does not become the new normal. Permanent rises are found by
loss_level.py, from the same lines.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

from opsctl.telemetry.progress.iteration import Iteration
from opsctl.watchdogs.loss_level import DEVIATION, LevelState, add_loss, raise_level, roll_back

WINDOW = 100
"""Number of log lines that define the level and the noise."""
MIN_LINES = 8
"""Fewer lines define no level."""
JUMP, SPIKE_LINES = 6.0, 2
"""A spike is this many deviations above the level, in so many lines in a row: a single odd batch is none."""
FLOOR = 0.01
"""Minimum noise as a share of the level: a very smooth window must not turn every line into a spike."""
NEAR_ZERO = 0.01
"""Minimum noise of a loss that is about zero or negative."""
MIN_SIGNED_LINES, SIGNED_DECAY = 3, 0.995
"""So many lines with a loss of zero or less, and with a gradient, among some 150 are no likelihood of text: a policy
gradient, whose loss starts at zero and rises while the model learns. Its level says nothing; spikes do. Rare lines of
that kind are batches without labels."""
SLOW = 20
"""Lines after which a spike is slow to recover."""
LOST = 200
"""Lines after which a higher loss becomes the new level."""
TREND = 20
"""Number of newest losses that are remembered, also during a spike."""
CLIP = 4.0
"""Deviations beyond which a line counts no further for the level: single odd lines are no rise."""
MIN_PASSED_LINES = 3
"""A spike or a lack of finite losses that began and ended between two cycles is reported from this many lines on."""
MAX_PASSED = 5


class LossShape(StrEnum):
    LEARNING = "too few lines"
    CALM = "calm"
    SPIKE = "spike"
    SLOW = "slow recovery"
    DIVERGING = "diverging"
    SETTLED = "at a higher level"
    NAN = "not a number"
    DEAD = "no gradient"
    STUCK = "the same in every line"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedIncident:
    """A spike, or a run of lines without a finite loss, that is over."""

    shape: LossShape
    step: int
    """The first step, or for NaN the first step afterwards."""
    since: int = 0
    """The first step that may have been in trouble."""
    lines: int
    peak: float = math.nan
    level: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class LossState:
    points: tuple[tuple[int, float], ...] = ()
    """Steps and losses of the window."""
    recent: tuple[float, ...] = ()
    """The last losses, also during a spike."""
    step: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    long_level: LevelState = field(default_factory=LevelState)
    """The level over many lines, and its permanent rise."""
    passed: tuple[PassedIncident, ...] = ()
    """Incidents that began and ended in the lines of the last call of `advance`."""
    spike_step: int | None = None
    """First step of the current spike."""
    spike_lines: int = 0
    peak: float = 0.0
    above: tuple[tuple[int, float], ...] = ()
    """Step and loss of the newest line, if it is above the spike threshold and no spike goes on."""
    bad: int = 0
    """Number of consecutive newest lines with a loss that is not finite, or with a step skipped for that reason."""
    bad_since: int | None = None
    """First step that may have had such a loss."""
    no_gradient: int = 0
    no_gradient_since: int | None = None
    has_gradient: bool = False
    signed_lines: float = 0.0
    """Number of lines with a loss of zero or less and with a gradient; before the third, earlier ones count less."""

    @property
    def level(self) -> float | None:
        """The expected loss; None before MIN_LINES lines."""
        return median(loss for _, loss in self.points[-WINDOW // 2 :]) if len(self.points) >= MIN_LINES else None

    @property
    def is_stuck(self) -> bool:
        """Whether the newest losses are all equal, in a log that hardly ever states a loss twice."""
        others = {loss for _, loss in self.points} - {self.loss}
        return self.recent == (self.loss,) * TREND and len(others) > WINDOW // 4 and min(others) > 0

    @property
    def has_level(self) -> bool:
        """Whether a permanent rise of the loss says something."""
        return self.signed_lines <= MIN_SIGNED_LINES - 1

    @property
    def noise(self) -> float:
        """The usual deviation from the level."""
        losses = [loss for _, loss in self.points]
        half = len(losses) // 2
        middle = median(losses)
        # The window's own slope is learning, not noise.
        slope = (median(losses[half:]) - median(losses[:half])) / max(1, len(losses) - half)
        spread = median(abs(loss - middle - slope * (place - half)) for place, loss in enumerate(losses))
        return max(DEVIATION * spread, FLOOR * abs(middle), NEAR_ZERO if middle < NEAR_ZERO else 0.0)


def advance(curve: LossState, lines: Iterable[Iteration]) -> LossState:
    """Return the state after `lines`, with the incidents that began and ended in them."""
    spike_step, was_bad = curve.spike_step, curve.bad > 0
    curve = replace(curve, passed=())
    for line in lines:
        curve = _advance_line(curve, line)
        if was_bad and curve.bad == 0:
            was_bad, curve = False, replace(curve, passed=())
    return replace(curve, passed=tuple(passed for passed in curve.passed if passed.step != spike_step))


def _advance_line(curve: LossState, line: Iteration) -> LossState:
    if line.loss is None and not line.nans:
        return curve
    if line.step == curve.step:
        return curve  # the same line twice
    if line.step < curve.step:
        curve = _rolled_back(curve, line.step)
    begin = first_new_step(curve.step, line.step)
    curve = _gradient(replace(curve, step=line.step), line, begin)
    # For a NaN step a trainer prints no loss, or the previous one.
    if line.loss is None or not math.isfinite(line.loss) or line.nans:
        since = curve.bad_since if curve.bad and curve.bad_since is not None else begin
        return replace(
            curve,
            bad=curve.bad + 1,
            bad_since=since,
            loss=line.loss if line.loss is not None else math.nan,
        )
    if curve.bad >= MIN_PASSED_LINES:
        since = curve.bad_since or line.step
        curve = _note(curve, PassedIncident(shape=LossShape.NAN, step=line.step, since=since, lines=curve.bad))
    curve = replace(curve, bad=0, bad_since=None, loss=line.loss, recent=(*curve.recent, line.loss)[-TREND:])
    return _judge_point(_note_sign(curve, line.loss, line.grad_norm), line.loss)


def _note_sign(curve: LossState, loss: float, grad_norm: float | None) -> LossState:
    """Count a loss of zero or less. Without a gradient, a loss of zero is that of a run that has collapsed."""
    if loss > 0:
        is_counting = curve.signed_lines > 0 and curve.has_level
        return replace(curve, signed_lines=curve.signed_lines * SIGNED_DECAY) if is_counting else curve
    if grad_norm is not None and (grad_norm == 0 or not math.isfinite(grad_norm)):
        return curve
    curve = replace(curve, signed_lines=curve.signed_lines + 1)
    return curve if curve.has_level else replace(curve, long_level=LevelState())


def _note(curve: LossState, incident: PassedIncident) -> LossState:
    return replace(curve, passed=(*curve.passed, incident)[-MAX_PASSED:])


def _rolled_back(curve: LossState, step: int) -> LossState:
    """Drop the points after `step`: the train resumed from an earlier checkpoint.

    A trouble that began before `step` goes on until the new lines show its end: most trains resume after a time limit.
    """
    curve = replace(
        curve,
        points=tuple(point for point in curve.points if point[0] < step),
        long_level=roll_back(curve.long_level, step),
        step=0,
        bad=0,
        bad_since=None,
    )
    if curve.spike_step is not None and curve.spike_step < step:
        return curve
    return replace(curve, recent=(), spike_step=None, spike_lines=0, above=())


def _gradient(curve: LossState, line: Iteration, begin: int) -> LossState:
    """A norm of zero says something only where it was not zero before: some trainers never compute it."""
    if line.grad_norm is None:
        return curve
    is_zero = line.grad_norm == 0
    since = curve.no_gradient_since if curve.no_gradient else begin
    return replace(
        curve,
        grad_norm=line.grad_norm,
        has_gradient=curve.has_gradient or not is_zero,
        no_gradient=curve.no_gradient + 1 if is_zero else 0,
        no_gradient_since=since if is_zero else None,
    )


def _judge_point(curve: LossState, loss: float) -> LossState:
    level = curve.level
    if curve.is_stuck:
        return curve  # the window keeps what was usual
    if level is None:
        return _take(curve, loss, loss, noise=0.0)
    if curve.spike_step is not None:
        return _in_spike(curve, loss, level)
    noise = curve.noise
    excess = (loss - level) / noise
    above = (*curve.above, (curve.step, loss)) if excess > JUMP else ()
    if len(above) >= SPIKE_LINES:
        peak = max(loss for _, loss in above)
        return replace(curve, spike_step=above[0][0], spike_lines=len(above), peak=peak, above=())
    return replace(curve, above=above) if above else _take(curve, loss, level, noise=noise)


def _in_spike(curve: LossState, loss: float, level: float) -> LossState:
    lines = curve.spike_lines + 1
    noise, step = curve.noise, curve.spike_step or curve.step
    if median(curve.recent[-3:]) < level + JUMP / 2 * noise:
        if lines > MIN_PASSED_LINES:
            since = find_spike_begin(curve) or step
            spike = PassedIncident(
                shape=LossShape.SPIKE, step=step, since=since, lines=lines, peak=curve.peak, level=level
            )
            curve = _note(curve, spike)
        # Losses during the spike must not influence the judgement after the spike.
        return _take(replace(curve, spike_step=None, spike_lines=0, above=(), recent=()), loss, level, noise=noise)
    if lines > LOST and _is_flat(curve.recent):
        fresh = tuple((curve.step, value) for value in curve.recent)
        raised = curve.long_level
        if curve.has_level:
            before = level if raised.before is None else raised.before
            raised = raise_level(raised, before=before, after=median(curve.recent), step=step)
        return replace(curve, points=fresh, spike_step=None, spike_lines=0, above=(), long_level=raised)
    return replace(curve, spike_lines=lines, peak=max(curve.peak, loss))


def first_new_step(before: int, step: int) -> int:
    """Return the first step that the line of `step` may report, after the line of the step `before`; 0: no line."""
    return before + 1 if 0 < before < step else step


def find_spike_begin(curve: LossState) -> int | None:
    """Return the first step after the last normal line before a spike; None without a spike."""
    if curve.spike_step is None:
        return None
    return min(first_new_step(curve.points[-1][0] if curve.points else 0, curve.spike_step), curve.spike_step)


def _is_flat(recent: Sequence[float]) -> bool:
    half = len(recent) // 2
    before, after = median(recent[:half]), median(recent[half:])
    return abs(after - before) < 2 * FLOOR * abs(before)


def _take(curve: LossState, loss: float, level: float, *, noise: float) -> LossState:
    """Add a normal line to the window and to the level."""
    points = (*curve.points, (curve.step, loss))[-WINDOW:]
    clipped = min(max(loss, level - CLIP * noise), level + CLIP * noise)
    long_level = curve.long_level
    if len(curve.points) >= MIN_LINES and curve.has_level:
        long_level = add_loss(long_level, curve.step, clipped, noise)
    return replace(curve, points=points, long_level=long_level, above=())


def shape(curve: LossState) -> LossShape:
    for loss_shape, holds in (
        (LossShape.NAN, curve.bad > 0),
        (LossShape.DEAD, curve.has_gradient and curve.no_gradient >= 3),
        (LossShape.STUCK, curve.is_stuck),
        (LossShape.DIVERGING, curve.spike_lines > SLOW and _rises(curve)),
        (LossShape.SLOW, curve.spike_lines > SLOW),
        (LossShape.SPIKE, curve.spike_step is not None),
        (LossShape.DIVERGING, curve.long_level.is_rising),
        (LossShape.SETTLED, curve.long_level.is_raised),
        (LossShape.LEARNING, curve.level is None),
    ):
        if holds:
            return loss_shape
    return LossShape.CALM


def _rises(curve: LossState) -> bool:
    half = len(curve.recent) // 2
    return half > 0 and median(curve.recent[half:]) > median(curve.recent[:half]) + 2 * curve.noise
