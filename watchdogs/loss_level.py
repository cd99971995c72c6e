"""Permanent rises of the loss, from means of many lines. Robust statistics, no clock and no files.

The means of batches of lines are compared with the lowest level of the last thousand lines, or with the end of the
course of the last hundreds where the loss falls: a mean over a fall is far above what has been reached. What exceeds an
allowance is summed up (CUSUM), so that a small rise needs more batches than a large one. The level before a rise stays
the reference until the loss is back, a rollback removes the rise, or a person accepts the new level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

BATCH_LINES = 20
"""Lines in a mean."""
MIN_BATCHES, LEVEL_BATCHES = 5, 10
"""Batches that define a level: at least, and where there are as many."""
MAX_BATCHES = 60
"""Batches remembered: a rollback by 900 lines leaves some."""
COURSE_BATCHES = 20
"""Newest batches that define the course of the loss."""
MAX_FALL, MAX_SUSPECTS = 0.05, 8
"""After a batch above the allowance, the course is continued by this share of the level at most, for so many batches:
no bend of a calm curve lifts the loss above what it has reached."""
CREEP_BATCHES, CREEP_SHARE, MAX_CREEP_FALL = 15, 0.055, 0.01
"""A slow rise: the mean of MIN_BATCHES is this share above the course of all but the newest CREEP_BATCHES, of which
there are COURSE_BATCHES: the beginning of a training alone is steeper than its course."""
ALLOWED_NOISE, ALLOWED_SHARE = 3.0, 0.05
"""A rise is allowed up to this many deviations of a batch and up to this share of the level: another mixture of the
data costs 3 %."""
BACK_NOISE, BACK_SHARE = 1.5, 0.01
"""The rise is over when the mean of MIN_BATCHES is as near to the level before."""
RISING_NOISE = 2.0
"""A batch so many deviations above the highest one continues the rise."""
LIMIT, MAX_EXCESS = 6.0, 3.0
"""Sum of excesses, in deviations, that is a rise; one batch adds at most MAX_EXCESS, so two batches are needed."""
FLOOR = 0.005
"""Smallest deviation of a batch, as a share of the level."""
TINY = 1e-9
"""Smallest distance of two logarithms: those of huge steps are equal."""
DEVIATION = 1.4826
"""Ratio of standard deviation to median absolute deviation of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelState:
    """The remembered level of a loss curve, and its rise, if there is one."""

    batches: tuple[tuple[int, float], ...] = ()
    """Last step and mean of the batches before the rise."""
    losses: tuple[float, ...] = ()
    """The incomplete batch."""
    excess: float = 0.0
    rise_step: int | None = None
    """First step of the rise, or of a possible rise while the excess is below the limit."""
    before: float | None = None
    """The level before the rise; None while the loss is at its normal level."""
    peak: float = 0.0
    """The highest batch since the rise."""
    recent: tuple[tuple[int, float], ...] = ()
    """Last step and mean of the newest batches since the rise, or of all since the begin of a possible rise."""
    rises: int = 0
    """Number of newest batches of which each is higher than all before."""

    @property
    def is_raised(self) -> bool:
        return self.before is not None

    @property
    def is_rising(self) -> bool:
        return self.is_raised and self.rises >= 2

    @property
    def rise_share(self) -> float:
        """The rise as a share of the level before."""
        if not self.before or not self.recent:
            return 0.0
        return fmean(mean for _, mean in self.recent) / self.before - 1


def add_loss(state: LevelState, step: int, loss: float, line_noise: float) -> LevelState:
    """Return the state after one line; `line_noise` is the usual deviation of a line."""
    losses = (*state.losses, loss)
    if len(losses) < BATCH_LINES:
        return replace(state, losses=losses)
    state, mean = replace(state, losses=()), fmean(losses)
    level, deviation = _find_course(state.batches, step, max_fall=MAX_FALL if state.excess > 0 else 0.0)
    floor = FLOOR * abs(level if state.before is None else state.before)
    noise = max(deviation, line_noise / math.sqrt(BATCH_LINES), floor)
    if state.before is not None:
        return _add_raised(state, state.before, step, mean, noise=noise)
    return _add_normal(state, step, mean, level=level, noise=noise)


def _add_normal(state: LevelState, step: int, mean: float, *, level: float, noise: float) -> LevelState:
    recent = (*state.recent, (step, mean))
    taken = replace(state, batches=(*state.batches, *recent)[-MAX_BATCHES:], recent=(), excess=0.0, rise_step=None)
    if len(state.batches) < MIN_BATCHES:
        return taken
    allowance = max(ALLOWED_NOISE * noise, ALLOWED_SHARE * abs(level))
    excess = state.excess + min(MAX_EXCESS, (mean - level - allowance) / noise)
    if excess <= 0 or (excess < LIMIT and len(recent) > MAX_SUSPECTS):
        return _find_creep(taken, step)
    rise_step = state.batches[-1][0] + 1 if state.rise_step is None else state.rise_step
    if excess < LIMIT:
        # A possible rise must not become part of the course with which the next batches are compared.
        return replace(state, excess=excess, rise_step=rise_step, recent=recent)
    return raise_level(state, before=level, after=mean, step=rise_step)


def _find_creep(state: LevelState, step: int) -> LevelState:
    """Return the state with a rise that came in many small steps, against the course of the batches before."""
    old, new = state.batches[:-CREEP_BATCHES], [mean for _, mean in state.batches[-MIN_BATCHES:]]
    if len(old) < COURSE_BATCHES:
        return state
    level, deviation = _find_course(old, step, max_fall=MAX_CREEP_FALL)
    allowance = max(ALLOWED_NOISE * deviation, CREEP_SHARE * abs(level))
    if fmean(new) <= level + allowance:
        return state
    return raise_level(state, before=level, after=fmean(new), step=old[-1][0] + 1)


def raise_level(state: LevelState, *, before: float, after: float, step: int) -> LevelState:
    """Return the state with a rise from `before` to `after` at `step`."""
    recent = ((step, after),)
    return replace(state, before=before, peak=after, rise_step=step, recent=recent, excess=0.0, rises=0, losses=())


def _add_raised(state: LevelState, before: float, step: int, mean: float, *, noise: float) -> LevelState:
    recent = (*state.recent, (step, mean))[-MIN_BATCHES:]
    allowance = max(BACK_NOISE * noise, BACK_SHARE * abs(before))
    if len(recent) == MIN_BATCHES and fmean(loss for _, loss in recent) <= before + allowance:
        # The batches from before the rise tell the course of an earlier part of the curve.
        return replace(lower_level(state), batches=recent)
    is_higher = mean > state.peak + RISING_NOISE * noise
    return replace(state, recent=recent, peak=max(state.peak, mean), rises=min(2, state.rises + 1) if is_higher else 0)


def lower_level(state: LevelState) -> LevelState:
    """Return the state without its rise: the loss is back."""
    return replace(state, before=None, peak=0.0, rise_step=None, recent=(), rises=0, excess=0.0, losses=())


def accept_level(state: LevelState) -> LevelState:
    """Return the state that learns the current level as the normal one."""
    return replace(lower_level(state), batches=())


def roll_back(state: LevelState, step: int) -> LevelState:
    """Return the state without what happened from `step` on; a rise that began before goes on."""
    batches = tuple(batch for batch in state.batches if batch[0] < step)
    if state.rise_step is not None and state.rise_step >= step:
        state = lower_level(state)
    recent = state.recent if state.is_raised else ()
    return replace(state, batches=batches, losses=(), recent=recent, excess=0.0)


def _find_course(batches: Sequence[tuple[int, float]], step: int, *, max_fall: float) -> tuple[float, float]:
    """Return the level that is expected at `step`, and the usual deviation of a batch; zeros for too few batches.

    The course is continued by the share `max_fall` of the level at most: a loss that flattens is no rise.
    """
    if len(batches) < MIN_BATCHES:
        return 0.0, 0.0
    means = [mean for _, mean in batches]
    count = min(LEVEL_BATCHES, len(means))
    lowest = min(fmean(means[start : start + count]) for start in range(len(means) - count + 1))
    # Over the logarithm of the step, the course of a loss is nearly straight.
    course = [(math.log(max(1, step)), mean) for step, mean in batches[-COURSE_BATCHES:]]
    pairs = zip(course, course[len(course) // 2 :], strict=False)
    slopes = ((after - before) / max(end - begin, TINY) for (begin, before), (end, after) in pairs)
    slope = min(0.0, median(slopes))
    reached = [mean + slope * (course[-1][0] - at) for at, mean in course]
    level = median(reached)
    deviation = DEVIATION * median(abs(mean - level) for mean in reached)
    fall = -slope * max(0.0, math.log(max(1, step)) - course[-1][0])
    return min(lowest, level) - min(fall, max_fall * abs(level)), deviation
