"""Documents of a sample kept apart: no token attends to another document, and positions begin anew with every document.

Beside the activations, layers hand on `starts` [b, s]: the place in the sample at which the document of a token begins.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

Layer = TypeVar("Layer", bound=type)
Carried: TypeAlias = Any
"""What a layer takes and gives: a tensor of activations, or the pair of activations and `starts`."""


def carries_starts(layer: Layer) -> Layer:
    """Make a layer take and give `starts` beside the activations; its own forward pass does not see them."""
    return _wrap(layer, lambda own, module, x, _: own(module, x))


def uses_starts(layer: Layer) -> Layer:
    """As `carries_starts`, for a layer whose own forward pass takes `starts` as well, or None."""
    return _wrap(layer, lambda own, module, x, starts: own(module, x, starts))


def _wrap(layer: Layer, call: Callable[..., Tensor]) -> Layer:
    own: Any = layer.forward  # type: ignore[attr-defined]  # a torch module, which mypy does not read

    def forward(module: Any, carried: Carried) -> Carried:
        if isinstance(carried, Tensor):
            return call(own, module, carried, None)
        x, starts = carried
        return call(own, module, x, starts), starts

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
