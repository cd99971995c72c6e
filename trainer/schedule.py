"""The learning rate as a pure function of the consumed samples; what is due at a step."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opsctl.trainer.config_tables import OptimizerConfig


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate over samples: linear over the warm-up, then the decay of `optimizer` down to its min_lr."""

    optimizer: "OptimizerConfig"
    end: int
    """Samples at which min_lr is reached; without meaning for the decays constant and inverse-square-root."""

    def at(self, samples: int) -> float:
        """Return the rate of the step that ends at `samples` consumed samples."""
        return self.optimizer.lr_scale * self._unscaled(samples)

    def _unscaled(self, samples: int) -> float:
        peak, least, warmup = self.optimizer.lr, self.optimizer.min_lr, self.optimizer.warmup_samples
        if samples < warmup:
            return peak * samples / warmup
        if self.optimizer.decay == "inverse-square-root":  # Vaswani et al., arXiv 1706.03762
            return max(least, peak * math.sqrt(warmup / samples))
        return least + (peak - least) * self._height(samples)

    def _height(self, samples: int) -> float:
        """Return the height of the rate between min_lr (0) and lr (1)."""
        warmup = self.optimizer.warmup_samples
        done = min(1.0, (samples - warmup) / max(1, self.end - warmup))
        match self.optimizer.decay:
            case "cosine":  # Loshchilov and Hutter, arXiv 1608.03983, without restarts
                return _half_cosine(done)
            case "cosine-restarts":  # the same paper, T_mult = 1
                return _half_cosine(done * (self.optimizer.periods or 1) % 1 if done < 1 else 1.0)
            case "linear":
                return 1 - done
            case "wsd":  # warm-up, stable, decay: MiniCPM, arXiv 2404.06395
                return min(1.0, max(0.0, (self.end - samples) / (self.optimizer.anneal_samples or 1)))
            case _:
                return 1.0


def _half_cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


def is_due(step: int, every: int) -> bool:
    """Return whether a task that runs every `every` steps is due after `step`; 0 means never."""
    return every > 0 and step > 0 and step % every == 0
