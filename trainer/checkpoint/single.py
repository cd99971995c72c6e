"""The model of a checkpoint in one process, for what is compared with it."""

from __future__ import annotations

import torch

from trainer import model
from trainer.checkpoint.weights import Weights
from trainer.tensor import Slice


def logits(weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Scores of each next token [b, s, vocabulary] in fp32, without dropout; one layer in memory at a time."""
    x = tokens
    for number, layer in enumerate(model.layers(weights.config, seed=0, part=Slice())):
        module = layer.build().float().eval()
        module.load_state_dict(weights.layer(number))
        with torch.no_grad():
            x = model.logits(module, x) if number == weights.layers[-1] else module(x)
    return x
