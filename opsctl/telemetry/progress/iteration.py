"""One step of a training run, and Megatron-LM's line: `iteration 20/ 100 | lm loss: 2.0E+00 | ... |`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
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


def _whole(text: str) -> int:
    return int(float(text))


def _from_ms(text: str) -> float:
    return float(text) / 1000


_FIELDS: dict[str, tuple[str, Callable[[str], float]]] = {
    "consumed samples": ("consumed_samples", _whole),
    "consumed tokens": ("tokens", _whole),
    "elapsed time per iteration (s)": ("step_s", float),
    "elapsed time per iteration (ms)": ("step_s", _from_ms),
    "learning rate": ("lr", float),
    "global batch size": ("global_batch", _whole),
    "lm loss": ("loss", float),
    "loss": ("loss", float),
    "grad norm": ("grad_norm", float),
    "loss scale": ("loss_scale", float),
    "number of skipped iterations": ("skipped", _whole),
    "number of nan iterations": ("nans", _whole),
    "samples per second": ("samples_per_s", float),
    "tflops": ("tflops", float),
    "throughput per gpu (tflop/s/gpu)": ("tflops", float),
}
_HEAD = re.compile(r"iteration\s+(\d{1,15})(?:\s*/\s*(\d{1,15}))?\s*\|", re.ASCII)


def parse(line: str) -> Iteration | None:
    """Parse an iteration line with any prefix; return None for any other line. Never raises."""
    head = _HEAD.search(line)
    if head is None:
        return None
    values: dict[str, float] = {}
    for part in line[head.end() :].split("|"):
        name, _, text = part.partition(":")
        known = _FIELDS.get(name.strip().lower())
        value = _convert(text, known[1]) if known else None
        if known and value is not None:
            values.setdefault(known[0], value)
    # `validation loss at iteration 100 | ...` has no last step and no time.
    if head[2] is None and "step_s" not in values:
        return None
    return Iteration(step=int(head[1]), last=int(head[2]) if head[2] else None, **values)  # type: ignore[arg-type]  # each field's type is in _FIELDS


def _convert(text: str, convert: Callable[[str], float]) -> float | None:
    try:
        return convert(text)
    except (ValueError, OverflowError):
        return None
