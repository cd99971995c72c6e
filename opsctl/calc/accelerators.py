"""Peak figures of accelerators, from their makers' data sheets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Peaks without sparsity. Data sheets also print figures with sparsity, twice as high."""

    name: str
    tflops: float
    """Half precision with fp32 accumulation (fp16 on V100, bf16 on all others), TFLOP/s."""
    memory_gb: float
    memory_tb_s: float
    link_gb_s: float
    """To the other accelerators of the node, in one direction."""
    processors: int
    """Streaming multiprocessors or compute units, for wave quantisation."""


ACCELERATORS: dict[str, Accelerator] = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(name="V100", tflops=125, memory_gb=32, memory_tb_s=0.9, link_gb_s=150, processors=80),
        Accelerator(name="A100", tflops=312, memory_gb=80, memory_tb_s=2.0, link_gb_s=300, processors=108),
        Accelerator(name="A100-40", tflops=312, memory_gb=40, memory_tb_s=1.55, link_gb_s=300, processors=108),
        Accelerator(name="H100", tflops=989, memory_gb=80, memory_tb_s=3.35, link_gb_s=450, processors=132),
        Accelerator(name="H100-PCIe", tflops=756, memory_gb=80, memory_tb_s=2.0, link_gb_s=300, processors=114),
        Accelerator(name="H200", tflops=989, memory_gb=141, memory_tb_s=4.8, link_gb_s=450, processors=132),
        Accelerator(name="B200", tflops=2250, memory_gb=180, memory_tb_s=8.0, link_gb_s=900, processors=148),
        Accelerator(name="MI250X", tflops=383, memory_gb=128, memory_tb_s=3.28, link_gb_s=400, processors=220),
        Accelerator(name="MI300X", tflops=1307, memory_gb=192, memory_tb_s=5.3, link_gb_s=448, processors=304),
    )
}
"""V100 to MI250X: the tables of the Machine Learning Engineering book ("Accelerators"); the rest: data sheets."""


def unknown(name: str) -> Iterator[str]:
    """Yield a problem if `name` is not a known accelerator."""
    if name.lower() not in map(str.lower, ACCELERATORS):
        yield f"gpu: {name!r} is not known; known: {', '.join(ACCELERATORS)}"


def accelerator(name: str) -> Accelerator:
    """Return an accelerator by name, in any case. Raises InputError."""
    for known, known_accelerator in ACCELERATORS.items():
        if known.lower() == name.lower():
            return known_accelerator
    raise InputError(f"gpu: {name!r} is not known", hint=f"known: {', '.join(ACCELERATORS)}")
