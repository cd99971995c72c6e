"""Which kind of GPU it is, from the names that drivers, constraints and gres give it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opsctl.calc.accelerators import ACCELERATORS, accelerator


def gpu_kind(names: Iterable[str]) -> str:
    """As opsctl.calc.accelerators names it: `NVIDIA A100-SXM4-40GB` is an A100-40. Of several the smallest; empty for
    what is not known."""
    kinds = {kind for name in names if (kind := _kind(name))}
    return min(kinds, key=lambda kind: accelerator(kind).memory_gb, default="")


def _kind(name: str) -> str:
    said = set(re.split(r"[^A-Z0-9]+", name.upper()))
    fitting = [
        accelerator
        for accelerator in ACCELERATORS.values()
        if set(accelerator.name.upper().split("-")) - {"40"} <= said
    ]
    sizes = [int(match[1]) for word in said if (match := re.fullmatch(r"(\d+)GB?", word))]
    size = sizes[0] if sizes else None
    # Without a size in its name an A100 is taken for the large one.
    fitting = [accelerator for accelerator in fitting if _is_as_large(accelerator.memory_gb, size)]
    return max((accelerator.name for accelerator in fitting), key=len, default="")


def _is_as_large(memory_gb: float, size: int | None) -> bool:
    return memory_gb != 40 if size is None else abs(memory_gb - size) <= 0.05 * size
