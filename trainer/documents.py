"""Documents of a sample kept apart: no token attends to another document, and positions begin anew with every document.

Beside the activations, layers hand on `starts` [b, s]: the place in the sample at which the document of a token begins.
"""

import functools
import inspect
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

Layer = TypeVar("Layer", bound=type)
Carried: TypeAlias = Any
"""What a layer takes and gives: a tensor of activations, or the pair of activations and `starts`."""


def carries_starts(layer: Layer) -> Layer:
    """Make a layer take and give `starts` beside the activations; its own forward pass sees them if it names them."""
    own: Any = layer.forward  # type: ignore[attr-defined]  # a torch module, which mypy does not read
    sees_starts = "starts" in inspect.signature(own).parameters

    def forward(module: Any, carried: Carried) -> Carried:
        x, starts = (carried, None) if isinstance(carried, Tensor) else carried
        given = own(module, x, starts) if sees_starts else own(module, x)
        return given if isinstance(carried, Tensor) else (given, starts)

    layer.forward = forward  # type: ignore[attr-defined]  # as above
    return layer


def activations(carried: Carried) -> Tensor:
    x: Tensor = carried if isinstance(carried, Tensor) else carried[0]
    return x


def positions(starts: Tensor) -> Tensor:
    """Return the position of every token in its document, [b, s]."""
    return torch.arange(starts.shape[1], device=starts.device) - starts


def visible(starts: Tensor | None) -> Tensor | None:
    """Return which earlier tokens a token attends to, [b, 1, s, s]: those of its document; None for all of them."""
    return None if starts is None else (starts.unsqueeze(2) == starts.unsqueeze(1)).tril().unsqueeze(1)


@functools.lru_cache(maxsize=4)  # one mask for all blocks of a rank with the same window
def within(window: int, length: int, device: torch.device) -> Tensor:
    """Return which earlier tokens a token attends to, [s, s]: the last `window`, itself included."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)
