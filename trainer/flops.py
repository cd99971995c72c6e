"""Sizes and floating-point operations of a GPT, by the published formulas."""

from __future__ import annotations


def parameters(*, layers: int, hidden: int, sequence: int, vocabulary: int) -> int:
    """Parameters of a GPT-2 with learnt positions and a tied output: 12·l·h² + 13·l·h + (V + s)·h + 2·h."""
    return 12 * layers * hidden**2 + 13 * layers * hidden + (vocabulary + sequence) * hidden + 2 * hidden


def step_flops(
    *, batch: int, layers: int, hidden: int, sequence: int, vocabulary: int, recompute: bool = False
) -> float:
    """Operations of one step over `batch` samples: 72·B·s·l·h²·(1 + s/(6h) + V/(12lh)), forward and backward.

    Narayanan et al. 2021, eq. 2 without recomputation; with it the blocks run forward once more (96, V/(16lh)).
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
    """Seconds that a save may take before one was measured: 14 bytes a parameter at 100 MB/s a rank, and 2 s."""
    return 2.0 + 14 * total_parameters / ranks / 100e6
