"""The usual speed of a run, and whether the run is slower. Robust statistics, no clock and no files.

The baseline is the highest median of a window of lines. While the run is slow, the window stands still: a lasting fall
never becomes the new normal. Every line counts, however many lie between two watch cycles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from opsctl.base.findings import Level

WINDOW = 200
"""Number of log lines in the usual median."""
RECENT = 10
"""Number of newest lines in the current median: single slow steps, such as after a save, do not count."""
MIN_WINDOW = 20
"""Fewer lines define no usual speed."""
STEADY_WINDOW = 100
"""Lines of which the median may raise the baseline for good: a median of fewer lines is often high by chance."""
MIN_DEVIATIONS = 3.0
"""The drop must also exceed this many deviations: some systems are never steady."""
CRITICAL_PERCENT = 30.0
"""A drop of more is critical."""
PAUSE_RATIO, MAX_PAUSE_LINES = 5.0, 2
"""So few lines in a row, so many times slower, are a pause: a hang that ended, a save, an evaluation."""
RECOVERY_LINES, RECOVERY_GROWTH = 4, 1.01
"""The rates after a pause, where the trainer logs a running mean, grow by this factor in every line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedState:
    """The remembered rates of one configuration. Higher is faster."""

    window: tuple[float, ...] = ()
    """Rates at the usual speed, the newest last."""
    recent: tuple[float, ...] = ()
    """The newest rates."""
    best: float = 0.0
    """The highest median of a full window."""
    pause_lines: int = 0
    is_slow: bool = False

    @property
    def is_known(self) -> bool:
        """Whether there are enough lines to judge."""
        return len(self.window) >= MIN_WINDOW and len(self.recent) == RECENT

    @property
    def usual(self) -> float:
        return max(self.best, median(self.window))

    @property
    def current(self) -> float:
        return median(self.recent)

    @property
    def noise(self) -> float:
        """The usual deviation of a median of RECENT lines."""
        middle = median(self.window)
        deviation = 1.4826 * median(abs(rate - middle) for rate in self.window)
        return 1.25 * deviation / math.sqrt(RECENT)

    @property
    def less_percent(self) -> float:
        """The current drop."""
        return 100 * (1 - self.current / self.usual)

    @property
    def level(self) -> Level:
        if not (self.is_known and self.is_slow):
            return Level.OK
        return Level.CRITICAL if self.less_percent > CRITICAL_PERCENT else Level.WARNING


def advance(state: SpeedState, rates: Iterable[float], *, slower_percent: float) -> SpeedState:
    for rate in rates:
        state = _advance_line(state, rate, slower_percent)
    return state


def _advance_line(state: SpeedState, rate: float, slower_percent: float) -> SpeedState:
    is_known = state.is_known
    if is_known and rate * PAUSE_RATIO < state.current:
        if state.pause_lines < MAX_PAUSE_LINES:
            return replace(state, pause_lines=state.pause_lines + 1)
    else:
        state = replace(state, pause_lines=0)
    recent, window = (*state.recent, rate), state.window
    if len(recent) > RECENT and not state.is_slow:
        window = (*window, recent[0])[-WINDOW:]
    state = replace(state, recent=recent[-RECENT:], window=window)
    if len(window) >= STEADY_WINDOW and not state.is_slow:
        state = replace(state, best=max(state.best, median(window)))
    return replace(state, is_slow=_is_slow(state, slower_percent)) if state.is_known else state


def _is_slow(state: SpeedState, slower_percent: float) -> bool:
    """Half the limits end the slowness, so that the state does not flap."""
    share = 0.5 if state.is_slow else 1.0
    is_below = state.less_percent > share * slower_percent
    is_clear = state.usual - state.current > share * MIN_DEVIATIONS * state.noise
    return is_below and is_clear and (state.is_slow or not _is_recovering(state, slower_percent))


def _is_recovering(state: SpeedState, slower_percent: float) -> bool:
    """Return whether the newest rates come back: after a pause, a running mean does so over some twenty lines."""
    newest = state.recent[-RECOVERY_LINES:]
    if median(newest[1:]) >= state.usual * (1 - slower_percent / 100):
        return True
    return all(after >= RECOVERY_GROWTH * before for before, after in pairwise(newest))
