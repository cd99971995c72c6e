"""What accelerators can do at most, by their makers' data sheets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Peaks without sparsity: data sheets print twice as much beside an asterisk."""

    name: str
    tflops: float
    """Half precision with fp32 accumulation (fp16 on V100, bf16 on all others), TFLOP/s."""
    memory_gb: float
    memory_tb_s: float
    link_gb_s: float
    """To the others in the node, one direction."""
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
    """A line that says so if `name` is not one of these."""
    if name.lower() not in map(str.lower, ACCELERATORS):
        yield f"gpu: {name!r} is not known; known: {', '.join(ACCELERATORS)}"


def accelerator(name: str) -> Accelerator:
    """By name, upper or lower case alike."""
    for known, found in ACCELERATORS.items():
        if known.lower() == name.lower():
            return found
    raise InputError(f"gpu: {name!r} is not known", hint=f"known: {', '.join(ACCELERATORS)}")
