"""The kind of a GPU, from its names in drivers, constraints and gres."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opsctl.calc.accelerators import ACCELERATORS, Accelerator, accelerator


def gpu_kind(names: Iterable[str]) -> str:
    """Return the kind by its name in opsctl.calc.accelerators: `NVIDIA A100-SXM4-40GB` is an A100-40.

    Of several kinds, return the kind with the least memory; empty if unknown.
    """
    kinds = {kind for name in names if (kind := _kind(name))}
    return min(kinds, key=lambda kind: accelerator(kind).memory_gb, default="")


def _kind(name: str) -> str:
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    fitting = [
        accelerator
        for accelerator in ACCELERATORS.values()
        if {part for part in accelerator.name.upper().split("-") if not part.isdigit()} <= words
    ]
    sizes = [int(match[1]) for word in words if (match := re.fullmatch(r"(\d+)GB?", word))]
    size = sizes[0] if sizes else None
    fitting = [accelerator for accelerator in fitting if _is_as_large(accelerator, size)]
    return max((accelerator.name for accelerator in fitting), key=len, default="")


def _is_as_large(kind: Accelerator, size: int | None) -> bool:
    """Whether the memory is as large. Without a size, a GPU counts as the usual model, whose name has none."""
    if size is None:
        return not kind.name.split("-")[-1].isdigit()
    return abs(kind.memory_gb - size) <= 0.05 * size
