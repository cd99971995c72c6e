"""Learning rate and batch size, as pure functions of the consumed samples."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A learning rate over samples: linear over `warmup`, then a cosine down to `least` at `end`, or constant."""

    peak: float
    least: float
    warmup: int
    end: int | None
    """Samples at which `least` is reached; None for a constant rate."""

    def at(self, samples: int) -> float:
        """Return the rate of the step that ends at `samples` consumed samples."""
        if samples < self.warmup:
            return self.peak * samples / self.warmup
        if self.end is None:
            return self.peak
        done = min(1.0, (samples - self.warmup) / max(1, self.end - self.warmup))
        return self.least + (self.peak - self.least) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """The batch size: from `start` to `full` by `increment` over the first `samples`, as Megatron's ramp-up.

    If `start` equals `full`, there is no ramp-up.
    """

    full: int
    start: int
    increment: int = 1
    samples: int = 0
    """Samples of the ramp-up, divided equally over its batch sizes except the last."""

    @property
    def increments(self) -> int:
        return (self.full - self.start) // self.increment

    def sizes(self) -> list[int]:
        """Return all batch sizes, smallest first."""
        return [self.start + number * self.increment for number in range(self.increments + 1)]

    def at(self, consumed: int) -> int:
        """Return the batch size of the step that begins after `consumed` samples."""
        if consumed > self.samples or self.increments == 0:
            return self.full
        return self.start + consumed * self.increments // self.samples * self.increment

    def consumed(self, steps: int) -> int:
        """Return the samples that the first `steps` steps consume."""
        consumed = 0
        for number, size in enumerate(self.sizes()[:-1], start=1):
            ends = -(-self.samples * number // self.increments)  # the first sample count with the next size
            here = min(steps, max(0, -(-(ends - consumed) // size)))
            consumed, steps = consumed + here * size, steps - here
        return consumed + steps * self.full


def is_due(step: int, every: int) -> bool:
    """Return whether a task that runs every `every` steps is due after `step`; 0 means never."""
    return every > 0 and step > 0 and step % every == 0
