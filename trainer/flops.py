"""Sizes and floating-point operations of a GPT, by the published formulas."""

from __future__ import annotations

PEAK_TFLOPS = {
    "V100": 125.0,
    "V100 PCIE": 112.0,
    "A100": 312.0,
    "A10": 125.0,
    "A40": 149.7,
    "L4": 121.0,
    "L40": 181.0,
    "L40S": 362.0,
    "RTX 4090": 165.2,
    "H100": 989.4,
    "H100 NVL": 835.0,
    "H100 PCIe": 756.0,
    "H200": 989.4,
    "H200 NVL": 835.5,
    "H20": 148.0,
    "GH200": 989.4,
    "B200": 2250.0,
    "GB200": 2500.0,
    "MI250X": 191.5,
    "MI300X": 1307.4,
    "MI325X": 1307.4,
}
"""bf16 (V100: fp16) matrix operations with fp32 sums, 10¹² a second, dense: half of what is given "with sparsity". From
NVIDIA's data sheet of each card (RTX 4090: the Ada architecture's whitepaper), and AMD's of each accelerator. Of MI250X
one of its two halves, which is what torch calls a GPU."""


def peak_tflops(device: str) -> float | None:
    """The peak of a GPU by the name that its driver gives it, such as `NVIDIA A100-SXM4-80GB`; None if not known."""
    words = device.replace("-", " ").upper()
    known = [name for name in PEAK_TFLOPS if f" {name.upper()} " in f" {words} "]
    return PEAK_TFLOPS[max(known, key=len)] if known else None


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
