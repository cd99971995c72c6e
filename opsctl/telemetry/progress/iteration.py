"""One step of a training run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The values of one line, None for missing values. A loss may be nan or inf, as logged."""

    step: int
    last: int | None = None
    """The step at which the run ends."""
    consumed_samples: int | None = None
    tokens: int | None = None
    step_s: float | None = None
    """Seconds per step since the line before."""
    lr: float | None = None
    global_batch: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    loss_scale: float | None = None
    skipped: int | None = None
    """Steps skipped since the line before."""
    skipped_total: int | None = None
    """Steps skipped since the start."""
    nans: int | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    """As logged: of one GPU, or of all."""
    tflops: float | None = None
