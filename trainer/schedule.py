"""Learning rate and batch size, as pure functions of the consumed samples."""

import math
from dataclasses import dataclass
from enum import StrEnum


class Decay(StrEnum):
    """The shape of a learning rate after its warm-up."""

    COSINE = "cosine"
    """Half a period of a cosine down to the least rate (Loshchilov and Hutter, arXiv 1608.03983, without restarts)."""
    COSINE_RESTARTS = "cosine-restarts"
    """As COSINE, several times in equal parts, each from the peak again (the same paper, T_mult = 1)."""
    LINEAR = "linear"
    WSD = "wsd"
    """Warm-up, stable, decay: the peak until the last part, then linear (MiniCPM, arXiv 2404.06395)."""
    INVERSE_SQUARE_ROOT = "inverse-square-root"
    """peak x sqrt(warmup / samples), never below the least rate (Vaswani et al., arXiv 1706.03762)."""
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A learning rate over samples: linear over `warmup`, then `decay` down to `least` at `end`."""

    peak: float
    least: float
    warmup: int
    end: int
    """Samples at which `least` is reached; without meaning for CONSTANT and INVERSE_SQUARE_ROOT."""
    decay: Decay = Decay.COSINE
    anneal: int = 0
    """WSD: samples of the decay, which ends at `end`."""
    periods: int = 1
    """COSINE_RESTARTS: number of periods between `warmup` and `end`."""
    scale: float = 1.0
    """Factor of the whole rate."""

    def at(self, samples: int) -> float:
        """Return the rate of the step that ends at `samples` consumed samples."""
        return self.scale * self._unscaled(samples)

    def _unscaled(self, samples: int) -> float:
        if samples < self.warmup:
            return self.peak * samples / self.warmup
        if self.decay is Decay.INVERSE_SQUARE_ROOT:
            return max(self.least, self.peak * math.sqrt(self.warmup / samples))
        return self.least + (self.peak - self.least) * self._height(samples)

    def _height(self, samples: int) -> float:
        """Return the height of the rate between `least` (0) and `peak` (1)."""
        done = min(1.0, (samples - self.warmup) / max(1, self.end - self.warmup))
        match self.decay:
            case Decay.COSINE:
                return _half_cosine(done)
            case Decay.COSINE_RESTARTS:
                return _half_cosine(done * self.periods % 1 if done < 1 else 1.0)
            case Decay.LINEAR:
                return 1 - done
            case Decay.WSD:
                return min(1.0, max(0.0, (self.end - samples) / self.anneal))
            case _:
                return 1.0


def _half_cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


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
