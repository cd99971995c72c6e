"""Progress and measurements of the run, the same on every rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from opsctl.trainer.manifest import DataOrder


@dataclass(slots=True, kw_only=True)
class RunState:
    """Progress of this attempt; step and samples continue from the resumed checkpoint."""

    step: int = 0
    consumed_samples: int = 0
    checkpoint_step: int | None = None
    """Step of the newest complete checkpoint."""
    loss: float | None = None
    grad_norm: float | None = None
    fault: str = ""
    """Origin of a loss or gradient that is not finite."""
    step_s: float | None = None
    """Seconds of the last step."""
    slowest_step_s: float = 0.0
    save_s: float = 0.0
    """Seconds of the last save; before the first save, an estimate."""
    seed: int | None = None
    """Seed of the run: configured, or drawn by the first attempt."""
    data: DataOrder | None = None
    """As in the manifest."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """Samples that were taken from every corpus up to the last save, by prefix."""
    earlier_tokens: int = 0
    """Tokens besides samples x sequence, of attempts with samples of another length."""
    spike: str = ""
    """Description of the loss spike that began with the last step; empty without a spike."""
    notes: list[str] = field(default_factory=list)
    """Problems that did not stop the run."""
    _steps_taken: int = 0

    def advance(self, *, samples: int, loss: float, grad_norm: float, step_s: float) -> None:
        """Count one step. The first step includes warm-up, so the second step replaces its duration as the slowest."""
        self.step += 1
        self.consumed_samples += samples
        self.loss, self.grad_norm, self.step_s = loss, grad_norm, step_s
        self.slowest_step_s = max(self.slowest_step_s, step_s) if self._steps_taken != 1 else step_s
        self._steps_taken += 1
