"""The model of a checkpoint in one process, for comparisons."""

from __future__ import annotations

from typing import Any

import torch

from opsctl.trainer import architecture, gpt
from opsctl.trainer.checkpoint.weights import Weights
from opsctl.trainer.tensor_parallel import Slice


def logits(weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Return fp32 logits of the next tokens, [b, s, vocabulary], without dropout; one layer in memory at a time."""
    *layers, output = architecture.layers(weights.config, seed=0, part=Slice())
    x = tokens
    with torch.no_grad():
        for number, layer in enumerate(layers):
            x = _build(layer, weights.layer(number))(x)
        if weights.config.is_tied:
            return gpt.logits(_build(output, weights.layer(0)), x)
        return _build(output, weights.layer(len(layers)))(x)


def _build(layer: Any, weights: dict[str, torch.Tensor]) -> Any:
    module = layer.build().float()
    module.load_state_dict(weights)
    return module.train(mode=False)
