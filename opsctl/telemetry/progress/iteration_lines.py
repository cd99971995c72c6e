"""Iteration lines as Megatron-LM and its kin write them: `iteration 20/ 100 | lm loss: 2.0E+00 | ... |`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from opsctl.errors import OpsctlError
from opsctl.telemetry.logs.growing_file import backwards

MOST_SEARCHED = 64 << 20
"""Bytes at the end of a log. A trainer that says so much between two iterations does not write iteration lines."""
MOST_READ = 4 << 20
"""Bytes at its end for more iterations than the newest: a look at a log costs no more, whatever else it says."""
SAMPLE = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What one line says; None for what it does not say. A loss may be nan or inf: that is what the line says."""

    step: int
    last: int | None = None
    """The step at which the run ends."""
    consumed_samples: int | None = None
    tokens: int | None = None
    step_s: float | None = None
    """Seconds for each of the steps since the line before."""
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
    """The iteration that a line reports, whatever stands before it; None for any other line. Never raises."""
    head = _HEAD.search(line)
    if head is None:
        return None
    values: dict[str, float] = {}
    for part in line[head.end() :].split("|"):
        name, _, text = part.partition(":")
        known = _FIELDS.get(name.strip().lower())
        value = _read(text, known[1]) if known else None
        if known and value is not None:
            values.setdefault(known[0], value)
    # `validation loss at iteration 100 | ...` has no last step and no time.
    if head[2] is None and "step_s" not in values:
        return None
    return Iteration(step=int(head[1]), last=int(head[2]) if head[2] else None, **values)  # type: ignore[arg-type]  # each field's type is in _FIELDS


def _read(text: str, convert: Callable[[str], float]) -> float | None:
    try:
        return convert(text)
    except (ValueError, OverflowError):
        return None


def last_iteration(log: Path) -> Iteration | None:
    """The newest iteration in a log of any size, or None if its end has none or it cannot be read."""
    return next(iter(recent_iterations(log, 1)), None)


def recent_iterations(log: Path, count: int) -> list[Iteration]:
    """The newest iterations in a log of any size, oldest first."""
    return [iteration for _, iteration in tail(log, count)]


def tail(log: Path, count: int) -> list[tuple[int, Iteration]]:
    """The newest iterations, oldest first, each with the offset of its line. Fewer where a log says much else."""
    found: list[tuple[int, Iteration]] = []
    try:
        size = log.stat().st_size
        for offset, line in backwards(log):
            if len(found) == count or size - offset > (MOST_READ if found else MOST_SEARCHED):
                break
            if b"iteration" in line and (iteration := parse(line.decode(errors="replace"))):
                found.append((offset, iteration))
    except (OSError, OpsctlError):
        pass
    return found[::-1]


def sampled(log: Path, places: int = 32) -> list[Iteration]:
    """Iterations at even distances over a whole log of any size, in its order: two of each place that has any."""
    iterations: list[Iteration] = []
    try:
        with log.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for place in range(places):
                iterations += _sample(os.pread(file.fileno(), SAMPLE, size * place // places))
    except OSError:
        pass
    return iterations


def _sample(data: bytes) -> list[Iteration]:
    """The first two whole lines that report an iteration. A cut first line does not count."""
    lines = (line for line in data.split(b"\n")[1:-1] if b"iteration" in line)
    known = (parse(line.decode(errors="replace")) for line in lines)
    return list(islice(filter(None, known), 2))
