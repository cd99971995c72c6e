"""The layers of GPT-2 and BLOOM.

Activations between layers are [micro_batch, tokens that a rank holds, hidden]. Initial weights do not depend on the
layout.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from opsctl.trainer import dropout, tensor_parallel
from opsctl.trainer.documents import Carried, activations, carries_starts, positions, visible
from opsctl.trainer.initial_weights import Normal
from opsctl.trainer.model_config import ModelConfig
from opsctl.trainer.tensor_parallel import ColumnLinear, Entry, RowLinear, Slice, into


@carries_starts
class TokenEmbedding(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Maps tokens [b, s] to vectors [b, s, hidden]; on the last stage, maps vectors to logits by the same weight.

    The layer has no other parameter: DeepSpeed synchronizes only the tied weight between the two stages.
    """

    def __init__(self, config: ModelConfig, seed: int, part: Slice) -> None:
        super().__init__()
        self.part = part
        whole = Normal(rows=config.vocabulary, columns=config.hidden, std=initial_std(config), seed=seed)
        self.weight = tensor_parallel.sliced(whole, part, dim=0)

    def forward(self, tokens: Tensor) -> Tensor:
        return tensor_parallel.embedding(tokens, self.weight, self.part)


def logits(embedding: TokenEmbedding, carried: Carried) -> Tensor:
    """Return the logits of the next tokens, [b, s, this rank's slice of the vocabulary]."""
    return into(activations(carried), embedding.part).times(embedding.weight)


@carries_starts
class PositionEmbedding(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Adds a learnt vector per position."""

    def __init__(self, config: ModelConfig, seed: int, part: Slice) -> None:
        super().__init__()
        self.part = part
        whole = Normal(rows=config.sequence, columns=config.hidden, std=initial_std(config), seed=seed)
        self.weight = nn.Parameter(whole.draw(range(config.sequence)))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, starts: Tensor | None) -> Tensor:
        tokens = self.part.tokens(x.shape[1])
        return self.dropout(x + self.weight[tokens if starts is None else positions(starts)[:, tokens]])


@carries_starts
class EmbeddingNorm(nn.LayerNorm):  # type: ignore[misc]  # mypy does not read torch
    """BLOOM's norm after the token embedding.

    A separate layer: DeepSpeed would not synchronize the norm's parameters as part of the tied embedding.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(super().forward(x))


@carries_starts
class ResidualBlock(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A pre-norm transformer block: attention, then feed-forward, both added to the residual stream."""

    def __init__(self, config: ModelConfig, seed: int, part: Slice) -> None:
        super().__init__()
        self.part, self.seed, self.drop = part, seed, config.dropout

    def forward(self, x: Tensor, starts: Tensor | None) -> Tensor:
        if self.drop and self.training:
            dropout.vary(self.seed)
        x = x + self._drop(self.out(self._attend(into(self.norm1(x), self.part), starts)))
        return x + self._drop(self.down(self._widen(into(self.norm2(x), self.part))))

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: bool) -> Tensor:
        """Return the mixed values of all heads, [b, heads, s, width]; without a mask, of the earlier tokens."""
        attend = functools.partial(
            functional.scaled_dot_product_attention, q, k, v, attn_mask=mask, is_causal=mask is None, **options
        )
        if not (self.drop and self.training):
            return attend()
        with self.part.own_randomness():  # every rank has its own heads
            return attend(dropout_p=self.drop)

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.drop, self.training) if self.drop else x


class Block(ResidualBlock):
    """The block of GPT-2 and BLOOM."""

    def __init__(self, config: ModelConfig, seed: int, part: Slice) -> None:
        super().__init__(config, seed, part)
        hidden, std = config.hidden, initial_std(config)
        into_residual = std / math.sqrt(2 * config.layers)
        self.head_width = hidden // config.heads
        heads = part.range(config.heads)
        self.slopes = slopes(config.heads)[heads.start : heads.stop] if config.family == "bloom" else None
        self.flex: Any = None  # compiled_blocks replaces the dense bias
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        # Rows are [head, q k v, head_width], so that a slice holds whole heads.
        self.qkv = ColumnLinear(Normal(rows=3 * hidden, columns=hidden, std=std, seed=seed), part)
        self.out = RowLinear(Normal(rows=hidden, columns=hidden, std=into_residual, seed=seed + 1), part)
        self.up = ColumnLinear(Normal(rows=4 * hidden, columns=hidden, std=std, seed=seed + 2), part)
        self.down = RowLinear(Normal(rows=hidden, columns=4 * hidden, std=into_residual, seed=seed + 3), part)

    def _attend(self, x: Entry, starts: Tensor | None) -> Tensor:
        qkv = self.qkv(x)
        batch, length, _ = qkv.shape
        q, k, v = qkv.view(batch, length, -1, 3, self.head_width).permute(3, 0, 2, 1, 4)
        if self.flex is not None:
            mixed = self.flex(q, k, v)
        else:
            bias = alibi(self.slopes, length, q.dtype, q.device) if self.slopes else visible(starts)
            mixed = self._mix(q, k, v, bias)
        return mixed.transpose(1, 2).reshape(batch, length, -1)

    def _widen(self, x: Entry) -> Tensor:
        return functional.gelu(self.up(x), approximate="tanh")


def slopes(heads: int) -> tuple[float, ...]:
    """Return ALiBi's slope for every head: 2^(-8/n), 2^(-16/n), … (Press et al. 2021).

    If n is not a power of two: the slopes of the next lower power, then every other slope of the next higher power.
    """
    power = 2 ** math.floor(math.log2(heads))
    finer = [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
    return tuple([2 ** (-8 * (i + 1) / power) for i in range(power)] + finer)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # mypy does not read torch
def alibi(slopes: tuple[float, ...], length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the bias of the attention scores, [heads, length, length]: -slope x distance; -inf for later positions."""
    return build_alibi(slopes, length, dtype, device)


@functools.lru_cache(maxsize=2)  # one mask for all blocks of a rank
def build_alibi(slopes: tuple[float, ...], length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Build the bias head by head: all heads at once in fp32 took five times the memory of the result."""
    places = torch.arange(length, device=device)
    distance = places.unsqueeze(1) - places
    later = distance < 0
    bias = torch.empty(len(slopes), length, length, dtype=dtype, device=device)
    for head, slope in zip(bias, slopes, strict=True):
        head.copy_((-slope * distance).masked_fill_(later, -math.inf))
    return bias


@carries_starts
class FinalNorm(nn.LayerNorm):  # type: ignore[misc]  # mypy does not read torch
    """The norm before the output."""


def initial_std(config: ModelConfig) -> float:
    return config.init_std or math.sqrt(1 / (3 * config.hidden))
