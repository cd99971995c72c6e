"""How far the run is, the same on every rank, and what was measured on the way."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class RunState:
    """Progress of this attempt; step and samples go on from the checkpoint that it resumed."""

    step: int = 0
    consumed_samples: int = 0
    checkpoint_step: int | None = None
    """The newest complete checkpoint."""
    loss: float | None = None
    grad_norm: float | None = None
    fault: str = ""
    """Where a loss or gradient that is not a number began."""
    step_s: float | None = None
    """Duration of the last step."""
    slowest_step_s: float = 0.0
    save_s: float = 0.0
    """Duration of the last save, or what one is assumed to take."""
    seed: int | None = None
    """Of the run: given, or drawn by its first attempt."""
    data: str = ""
    """What is trained on, as the manifest says it."""
    spike: str = ""
    """What to say of the loss spike that began with the last step; empty if none did."""
    notes: list[str] = field(default_factory=list)
    """What went wrong and did not stop the run."""
    _steps_taken: int = 0

    def advance(self, *, samples: int, loss: float, grad_norm: float, step_s: float) -> None:
        """Count one step. The first of an attempt warms up, so it is the slowest only until there is another."""
        self.step += 1
        self.consumed_samples += samples
        self.loss, self.grad_norm, self.step_s = loss, grad_norm, step_s
        self.slowest_step_s = max(self.slowest_step_s, step_s) if self._steps_taken != 1 else step_s
        self._steps_taken += 1
