"""The shape that a model of a given size, or of a few given figures, usually has."""

from __future__ import annotations

from typing import Any

from opsctl.calc.gpt_size import ModelShape, parameters

HEAD_COLUMNS = 128
LLAMA_VOCABULARY = 128256
"""Of Llama 3."""
_LLAMA: dict[str, Any] = {"gated": True, "biases": False, "positions": False, "tied": False}


def shape_of_size(billions: float, *, vocabulary: int = LLAMA_VOCABULARY, sequence: int = 4096) -> ModelShape:
    """Return a Llama-like shape with about `billions` parameters: hidden is 128 times the layers, as in Llama 2 13B."""
    layers = max(1, round((billions * 1e9 / (12 * 128**2)) ** (1 / 3)))
    return _narrow(layers, billions, vocabulary, sequence)


def _narrow(layers: int, billions: float, vocabulary: int, sequence: int) -> ModelShape:
    """Return the shape with `layers` whose hidden size, a multiple of a head, comes closest to the size."""
    shapes = [
        ModelShape(
            layers=layers,
            hidden=heads * HEAD_COLUMNS,
            heads=heads,
            ffn=_gated_width(heads * HEAD_COLUMNS),
            vocabulary=vocabulary,
            sequence=sequence,
            **_LLAMA,
        )
        for heads in range(1, 257)
    ]
    return min(shapes, key=lambda shape: abs(parameters(shape) - billions * 1e9))


def _gated_width(hidden: int) -> int:
    """Return the width of three matrices with as many parameters as two of 4h: 8h/3, a multiple of 256 (Llama 2)."""
    return -(-8 * hidden // 3 // 256) * 256


def shape_of_sizes(layers: int, hidden: int, *, sequence: int | None = None) -> tuple[ModelShape, tuple[str, ...]]:
    """Return a Llama-like shape of `layers` and `hidden`, and the further sizes that were assumed."""
    heads = max(1, hidden // HEAD_COLUMNS)
    groups = 8 if heads % 8 == 0 else heads
    width, length = _gated_width(hidden), sequence or 4096
    if groups < heads:  # Llama 2 and 3 give the parameters saved by grouped queries to the feed-forward part
        width = -(-int(1.3 * width) // 1024) * 1024
    shape = ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=groups,
        ffn=width,
        vocabulary=LLAMA_VOCABULARY,
        sequence=length,
        **_LLAMA,
    )
    assumed = (
        f"{heads} heads, {groups} of keys and values (as Llama 3)",
        f"gated feed-forward part of {width}",
        f"vocabulary {LLAMA_VOCABULARY}, output layer not tied",
        *(() if sequence else (f"--sequence {length}",)),
    )
    return shape, assumed
