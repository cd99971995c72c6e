"""Detection of loss spikes, by comparison with the losses of the steps before."""

import math
import statistics
from collections import deque

from opsctl.trainer.config_tables import SpikeConfig

NAME = "loss spike"
"""Keeps the checkpoints of spikes."""
_MIN_DEVIATION = 0.01
"""Smallest assumed standard deviation, as a share of the mean."""


class Spikes:
    """The window of the last losses, without spikes. The same on every rank, because the loss is."""

    def __init__(self, config: SpikeConfig) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=config.window)
        self._since = 0

    def add_loss(self, loss: float | None) -> str:
        """Add the loss of a step; return a description if a spike begins with this step, else an empty text.

        Losses that stay high belong to the same spike, until they have lasted for a whole window: then they become the
        new normal.
        """
        if not self._config.deviations or loss is None or not math.isfinite(loss):
            return ""
        if len(self._losses) < self._config.window:
            self._losses.append(loss)
            return ""
        mean = statistics.fmean(self._losses)
        deviation = max(statistics.pstdev(self._losses), _MIN_DEVIATION * abs(mean))
        if loss <= mean + self._config.deviations * deviation:
            self._since = 0
            self._losses.append(loss)
            return ""
        self._since += 1
        if self._since >= self._config.window:
            self._losses.clear()
            self._since = 0
        if self._since != 1:
            return ""
        return (
            f"{NAME}: {loss:.4f} is {(loss - mean) / deviation:.1f} standard deviations above {mean:.4f}, "
            f"the mean of the {self._config.window} steps before"
        )
