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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Samples of a step: from `start` up to `full` by `increment`, over the first `samples`; Megatron's ramp-up.

    Where start is `full` there is no ramp.
    """

    full: int
    start: int
    increment: int = 1
    samples: int = 0
    """Over which the batch grows, in equal parts; the one that it begins with included."""

    @property
    def increments(self) -> int:
        return (self.full - self.start) // self.increment

    def sizes(self) -> list[int]:
        """Every size that a step may have, smallest first."""
        return [self.start + number * self.increment for number in range(self.increments + 1)]

    def at(self, consumed: int) -> int:
        """Samples of the step that begins after `consumed` samples."""
        if consumed > self.samples or self.increments == 0:
            return self.full
        return self.start + consumed * self.increments // self.samples * self.increment

    def consumed(self, steps: int) -> int:
        """Samples that the first `steps` steps take."""
        consumed = 0
        for number, size in enumerate(self.sizes()[:-1], start=1):
            ends = -(-self.samples * number // self.increments)  # the first sample count with the next size
            here = min(steps, max(0, -(-(ends - consumed) // size)))
            consumed, steps = consumed + here * size, steps - here
        return consumed + steps * self.full


def is_due(step: int, every: int) -> bool:
    """Whether something done each `every` steps is done after `step`; 0 is never."""
    return every > 0 and step > 0 and step % every == 0
