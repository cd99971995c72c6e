"""Number of parameters and of floating-point operations of a GPT, by published formulas."""

from __future__ import annotations

import tomllib
from importlib.resources import files

PEAK_TFLOPS: dict[str, float] = tomllib.loads(files("opsctl.trainer").joinpath("peak_tflops.toml").read_text())
"""Peaks in 10¹² operations per second, by a part of the driver's name."""


def peak_tflops(device: str) -> float | None:
    """Return the peak of a GPU by its driver's name, such as `NVIDIA A100-SXM4-80GB`; None if unknown."""
    words = device.replace("-", " ").upper()
    known = [name for name in PEAK_TFLOPS if f" {name.upper()} " in f" {words} "]
    return PEAK_TFLOPS[max(known, key=len)] if known else None


def parameters(*, layers: int, hidden: int, sequence: int, vocabulary: int) -> int:
    """Return the parameters of a GPT-2 with learnt positions and tied output: 12·l·h² + 13·l·h + (V + s)·h + 2·h."""
    return 12 * layers * hidden**2 + 13 * layers * hidden + (vocabulary + sequence) * hidden + 2 * hidden


def step_flops(
    *, batch: int, layers: int, hidden: int, sequence: int, vocabulary: int, recompute: bool = False
) -> float:
    """Return the operations of one step over `batch` samples: 72·B·s·l·h²·(1 + s/(6h) + V/(12lh)).

    With `recompute` the blocks run forward twice: 96 and V/(16lh), Narayanan et al. 2021, eq. 2.
    """
    factor, output = (96, 16) if recompute else (72, 12)
    return (
        factor
        * batch
        * sequence
        * layers
        * hidden**2
        * (1 + sequence / (6 * hidden) + vocabulary / (output * layers * hidden))
    )


def assumed_save_s(*, total_parameters: int, ranks: int) -> float:
    """Return the assumed seconds of a save before the first save: 14 bytes per parameter, 100 MB/s per rank, 2 s."""
    return 2.0 + 14 * total_parameters / ranks / 100e6
