"""Is this loss a spike? Judged against the losses just before it."""

from __future__ import annotations

import math
import statistics
from collections import deque

from opsctl.trainer.config_tables import SpikeConfig

NAME = "loss spike"
"""What the reason begins with that keeps a checkpoint for study."""
_LEAST = 0.01
"""Share of the mean that is noise however even the losses were."""


class Spikes:
    """The last losses, those of spikes left out. The same on every rank, for the loss is."""

    def __init__(self, config: SpikeConfig) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=config.window)
        self._since = 0

    def add_loss(self, loss: float | None) -> str:
        """Take in the loss of a step; what to say if a spike begins with it, else nothing.

        One spike is told once: losses that stay high are the same spike, until they have stayed for a whole window and
        are what is usual now.
        """
        if not self._config.deviations or loss is None or not math.isfinite(loss):
            return ""
        if len(self._losses) < self._config.window:
            self._losses.append(loss)
            return ""
        mean = statistics.fmean(self._losses)
        deviation = max(statistics.pstdev(self._losses), _LEAST * abs(mean))
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
