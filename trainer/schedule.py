"""What changes over a run, as pure functions of the samples consumed so far."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A learning rate over samples: a linear rise over `warmup`, then a cosine down to `least` at `end`, or level."""

    peak: float
    least: float
    warmup: int
    end: int | None
    """Sample at which `least` is reached; None stays at `peak`."""

    def at(self, samples: int) -> float:
        """The rate of a step that ends when `samples` have been consumed."""
        if samples < self.warmup:
            return self.peak * samples / self.warmup
        if self.end is None:
            return self.peak
        done = min(1.0, (samples - self.warmup) / max(1, self.end - self.warmup))
        return self.least + (self.peak - self.least) * 0.5 * (1 + math.cos(math.pi * done))


def is_due(step: int, every: int) -> bool:
    """Whether something done each `every` steps is done after `step`; 0 is never."""
    return every > 0 and step > 0 and step % every == 0
