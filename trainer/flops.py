"""Number of parameters and of floating-point operations of a GPT, by published formulas."""

from __future__ import annotations

PEAK_TFLOPS = {
    "V100": 125.0,
    "V100 PCIE": 112.0,
    "A100": 312.0,
    "A800": 312.0,
    "A6000": 154.8,
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
    "B300": 2250.0,
    "GB200": 2500.0,
    "GB300": 2500.0,
    "MI250X": 191.5,
    "MI300X": 1307.4,
    "MI325X": 1307.4,
    "MI350X": 2307.0,
    "MI355X": 2516.0,
}
"""Dense bf16 (V100: fp16) matrix operations with fp32 sums, in 10¹² per second: half of the figure "with sparsity".

Sources: NVIDIA's and AMD's data sheets (RTX 4090: whitepaper of the Ada architecture). MI250X: one of its two halves,
which torch counts as a GPU.
"""


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
