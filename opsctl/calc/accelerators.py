"""Figures of accelerators, from accelerators.toml and the trainer's table of peaks."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from opsctl.base.errors import InputError
from opsctl.base.tables import read_package_table
from opsctl.trainer.model_size import peak_tflops


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Peaks without sparsity. Data sheets also print figures with sparsity, twice as high."""

    name: str
    tflops: float
    """Half precision with fp32 accumulation (fp16 on V100, bf16 on all others), TFLOP/s."""
    memory_gb: float
    memory_tb_s: float
    link_gb_s: float
    """To the other accelerators of the domain, in one direction."""
    fp8_tflops: float = 0.0
    """0 without fp8."""
    network_gb_s: float = 25.0
    """Of one accelerator, in one direction, in the maker's reference cluster."""
    domain: int = 8
    """Number of accelerators that `link_gb_s` joins: 8 in most nodes, 72 in an NVL72 rack."""
    watts: float = 0.0
    generation: str = "hopper"
    """Key of the fitted efficiencies in step_time.toml."""

    fp4_tflops: float = 0.0
    """0 without fp4."""
    sustained: float = 1.0
    """Share of the clock that the power limit allows, next to the largest part of the generation."""

    def peak_tflops(self, number_format: str) -> float:
        """Return the peak in `fp4`, in `fp8`, or in half precision."""
        return {"fp4": self.fp4_tflops, "fp8": self.fp8_tflops}.get(number_format, self.tflops)

    def has(self, number_format: str) -> bool:
        return self.peak_tflops(number_format) > 0


def _read() -> dict[str, Accelerator]:
    tables = read_package_table("calc/accelerators.toml")
    return {name: Accelerator(name=name, tflops=_find_peak(name), **figures) for name, figures in tables.items()}


def _find_peak(name: str) -> float:
    peak = peak_tflops(name)
    assert peak, f"trainer/peak_tflops.toml has no peak of {name}"
    return peak


ACCELERATORS: dict[str, Accelerator] = _read()


def unknown(name: str) -> Iterator[str]:
    """Yield a problem if `name` is neither a known accelerator nor the figures of one."""
    try:
        accelerator(name)
    except InputError as error:
        yield f"{error.message}; {error.hint}"


def accelerator(name: str) -> Accelerator:
    """Return an accelerator by name, in any case, or by its figures. Raises InputError."""
    if "=" in name:
        return _read_figures(name)
    for known, known_accelerator in ACCELERATORS.items():
        if known.lower() == name.lower():
            return known_accelerator
    near = "".join(f"did you mean {kind}? " for kind in get_close_matches(name.upper(), ACCELERATORS, 1))
    raise InputError(f"gpu: {name!r} is not known", hint=f"{near}known: {', '.join(ACCELERATORS)}")


def _read_figures(text: str) -> Accelerator:
    """Read `tflops=989,memory_gb=80,memory_tb_s=3.35,link_gb_s=450`, and further figures of Accelerator."""
    figures: dict[str, str] = {}
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        figures[name.strip()] = value.strip()
    generation = figures.pop("generation", "hopper")
    missing = [name for name in ("tflops", "memory_gb", "memory_tb_s", "link_gb_s") if name not in figures]
    try:
        numbers: dict[str, Any] = {name: float(value) for name, value in figures.items()}
        numbers |= {"domain": int(numbers["domain"])} if "domain" in numbers else {}
        if not missing and all(0 < number < 1e9 for number in numbers.values()):
            return Accelerator(name="own", generation=_known_generation(generation), **numbers)
    except (TypeError, ValueError):
        pass
    reason = f"{', '.join(missing)} not given" if missing else "a figure is not known or no number above 0"
    raise InputError(f"gpu: {text!r}: {reason}", hint="tflops=989,memory_gb=80,memory_tb_s=3.35,link_gb_s=450")


def _known_generation(name: str) -> str:
    generations = sorted({known.generation for known in ACCELERATORS.values()})
    if name not in generations:
        raise InputError(f"gpu: generation {name!r} is not known", hint=f"known: {', '.join(generations)}")
    return name


def gpu_kind(names: Iterable[str]) -> str:
    """Return the kind by its name in ACCELERATORS: `NVIDIA A100-SXM4-40GB` is an A100-40.

    Of several kinds, return the kind with the least memory; empty if unknown.
    """
    kinds = {kind for name in names if (kind := _find_kind(name))}
    return min(kinds, key=lambda kind: accelerator(kind).memory_gb, default="")


def _find_kind(name: str) -> str:
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    fitting = [
        kind
        for kind in ACCELERATORS.values()
        if {part for part in kind.name.upper().split("-") if not part.isdigit()} <= words
    ]
    sizes = [int(match[1]) for word in words if (match := re.fullmatch(r"(\d+)GB?", word))]
    size = sizes[0] if sizes else None
    fitting = [kind for kind in fitting if _is_as_large(kind, size)]
    return max((kind.name for kind in fitting), key=len, default="")


def _is_as_large(kind: Accelerator, size: int | None) -> bool:
    """Whether the memory is as large. Without a size, a GPU counts as the usual model, whose name has none."""
    if size is None:
        return not kind.name.split("-")[-1].isdigit()
    return abs(kind.memory_gb - size) <= 0.05 * size
