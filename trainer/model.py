"""The GPT, as the list of layers that a pipeline is cut from.

Activations between layers are [micro_batch, sequence, hidden]. Each layer draws its initial weights from a generator
of its own, so that they are the same however the layers are spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, TiedLayerSpec
from torch import Tensor, nn
from torch.nn import functional

from trainer.config import ModelConfig


class TokenEmbedding(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Tokens [b, s] to vectors [b, s, hidden]; on the last stage, vectors to logits with the same weight.

    The weight is all that it holds: nothing else of a tied layer is kept equal on both stages.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(_normal(config.vocabulary, config.hidden, std=_std(config), seed=seed))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.embedding(tokens, self.weight)


def logits(embedding: TokenEmbedding, x: Tensor) -> Tensor:
    """Scores of each next token, [b, s, vocabulary]."""
    return functional.linear(x, embedding.weight)


class PositionEmbedding(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Adds a learnt vector for each position."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(_normal(config.sequence, config.hidden, std=_std(config), seed=seed))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + self.weight[: x.shape[1]])


class Linear(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A matrix and a bias; only it draws its weights from a seed of its own."""

    def __init__(self, inputs: int, outputs: int, *, std: float, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(_normal(outputs, inputs, std=std, seed=seed))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class Block(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Attention and a feed-forward half, each behind a norm and added to what came in."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        hidden, std = config.hidden, _std(config)
        into_residual = std / math.sqrt(2 * config.layers)
        self.heads, self.drop = config.heads, config.dropout
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = Linear(hidden, 3 * hidden, std=std, seed=seed)  # rows are [head, q k v, head_dim]
        self.out = Linear(hidden, hidden, std=into_residual, seed=seed + 1)
        self.up = Linear(hidden, 4 * hidden, std=std, seed=seed + 2)
        self.down = Linear(4 * hidden, hidden, std=into_residual, seed=seed + 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._dropped(self.out(self._attend(self.norm1(x))))
        return x + self._dropped(self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh")))

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, self.heads, 3, hidden // self.heads).permute(3, 0, 2, 1, 4)
        drop = self.drop if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        return mixed.transpose(1, 2).reshape(batch, length, hidden)

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.drop, self.training) if self.drop else x


class FinalNorm(nn.LayerNorm):  # type: ignore[misc]  # mypy does not read torch
    """The norm before the output."""


def loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in fp32 of scores [b, s, vocabulary] against labels [b, s]."""
    return functional.cross_entropy(scores.float().flatten(0, 1), labels.flatten())


def layers(config: ModelConfig, *, seed: int) -> list[Any]:
    """DeepSpeed's specifications of the layers, first to last."""

    def seed_of(layer: int) -> int:
        return seed * 1_000_003 + layer * 8  # a layer takes up to four seeds

    tied = {"tied_weight_attr": "weight"}
    return [
        TiedLayerSpec("embedding", TokenEmbedding, config, seed_of(0), **tied),
        LayerSpec(PositionEmbedding, config, seed_of(1)),
        *(LayerSpec(Block, config, seed_of(2 + number)) for number in range(config.layers)),
        LayerSpec(FinalNorm, config.hidden),
        TiedLayerSpec("embedding", TokenEmbedding, config, seed_of(0), forward_fn=logits, **tied),
    ]


def parameter_groups(module: nn.Module, *, weight_decay: float) -> Iterator[dict[str, Any]]:
    """Parameters with and without weight decay: biases and norms are vectors, and go without."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
    yield {"params": matrices, "weight_decay": weight_decay}
    if vectors:
        yield {"params": vectors, "weight_decay": 0.0}


def _std(config: ModelConfig) -> float:
    return config.init_std or math.sqrt(1 / (3 * config.hidden))


def _normal(*shape: int, std: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator) * std
