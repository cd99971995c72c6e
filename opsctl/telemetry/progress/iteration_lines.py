"""Iteration lines in Megatron-LM's format: `iteration 20/ 100 | lm loss: 2.0E+00 | ... |`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from opsctl.errors import OpsctlError
from opsctl.state.files import open_regular
from opsctl.telemetry.logs.growing_file import backwards

MAX_SEARCHED_BYTES = 64 << 20
"""Searched for the newest iteration line. A trainer that logs more between two lines writes no iteration lines."""
MAX_READ_BYTES = 4 << 20
"""Searched for further iteration lines, to bound the time."""
SAMPLE_BYTES = 1 << 15


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
    nans: int | None = None
    samples_per_s: float | None = None
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


def last_iteration(log: Path) -> Iteration | None:
    """Return the newest iteration of a log of any size; None if its end has none, or the log cannot be read."""
    return next(iter(recent_iterations(log, 1)), None)


def recent_iterations(log: Path, count: int) -> list[Iteration]:
    """Return the newest iterations of a log of any size, oldest first."""
    return [iteration for _, iteration in tail(log, count)]


def tail(log: Path, count: int) -> list[tuple[int, Iteration]]:
    """Return the newest iterations with the offset of their lines, oldest first; fewer if lines are far apart."""
    iterations: list[tuple[int, Iteration]] = []
    try:
        size = log.stat().st_size
        for offset, line in backwards(log):
            if len(iterations) == count or size - offset > (MAX_READ_BYTES if iterations else MAX_SEARCHED_BYTES):
                break
            if b"iteration" in line and (iteration := parse(line.decode(errors="replace"))):
                iterations.append((offset, iteration))
    except (OSError, OpsctlError):
        pass
    return iterations[::-1]


def sampled(log: Path, places: int = 32) -> list[Iteration]:
    """Return iterations at even distances over a log of any size, in order: up to two at every place."""
    iterations: list[Iteration] = []
    try:
        handle = open_regular(log)
    except OSError:
        return []
    try:
        size = os.fstat(handle).st_size
        for place in range(places):
            iterations += _parse_sample(os.pread(handle, SAMPLE_BYTES, size * place // places))
    except OSError:
        pass
    finally:
        os.close(handle)
    return iterations


def _parse_sample(data: bytes) -> list[Iteration]:
    """Return the first two iterations in complete lines; the first and the last line may be incomplete."""
    lines = (line for line in data.split(b"\n")[1:-1] if b"iteration" in line)
    parsed = (parse(line.decode(errors="replace")) for line in lines)
    return list(islice(filter(None, parsed), 2))
