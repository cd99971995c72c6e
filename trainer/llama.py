"""The layers of Llama and its relatives: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

The formulas follow transformers' modeling_llama.py, in the order of its roundings, so that exported weights give the
same logits there.
"""

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from opsctl.trainer.documents import Carried, activations, carries_starts, positions, visible
from opsctl.trainer.gpt import ResidualBlock, initial_std
from opsctl.trainer.initial_weights import Normal
from opsctl.trainer.model_config import ModelConfig, RopeScaling
from opsctl.trainer.tensor_parallel import ColumnLinear, Entry, RowLinear, Slice, into, share_gradient


class _RmsNorm(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Divides by the root of the mean square, in fp32 (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * _normalised(x, self.eps)


@carries_starts
class RmsNorm(_RmsNorm):
    """The norm before the output, and those of a block."""


class HeadNorm(_RmsNorm):
    """Qwen3's norm of every head of queries or keys; every tensor rank normalises its own heads."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        share_gradient(self.weight)


def _normalised(x: Tensor, eps: float) -> Tensor:
    exact = x.float()
    return (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


@carries_starts
class EmbeddingDropout(nn.Dropout):  # type: ignore[misc]  # mypy does not read torch
    """Follows the token embedding; has no parameters."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.dropout)


class OutputProjection(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Maps vectors to logits [b, s, this rank's slice of the vocabulary] by a weight of its own."""

    def __init__(self, config: ModelConfig, seed: int, part: Slice) -> None:
        super().__init__()
        weight = Normal(rows=config.vocabulary, columns=config.hidden, std=initial_std(config), seed=seed)
        self.part, self.projection = part, ColumnLinear(weight, part, bias=False)

    def forward(self, carried: Carried) -> Tensor:
        projected: Tensor = self.projection(into(activations(carried), self.part))
        return projected


class LlamaBlock(ResidualBlock):
    """A block with SwiGLU as its feed-forward."""

    def __init__(self, config: ModelConfig, seed: int, part: Slice) -> None:
        super().__init__(config, seed, part)
        hidden, std, width = config.hidden, initial_std(config), config.width_of_head
        into_residual = std / math.sqrt(2 * config.layers)
        self.config, self.queries = config, config.heads // config.group_count
        rows = config.group_count * (self.queries + 2) * width
        self.norm1, self.norm2 = RmsNorm(hidden, config.epsilon), RmsNorm(hidden, config.epsilon)
        # Rows are [group, its queries, key, value, width], so that a slice holds whole groups.
        self.qkv = ColumnLinear(Normal(rows=rows, columns=hidden, std=std, seed=seed), part, bias=config.qkv_bias)
        self.out = RowLinear(
            Normal(rows=hidden, columns=config.heads * width, std=into_residual, seed=seed + 1), part, bias=False
        )
        ffn = config.width_of_ffn
        self.gate = ColumnLinear(Normal(rows=ffn, columns=hidden, std=std, seed=seed + 2), part, bias=False)
        self.up = ColumnLinear(Normal(rows=ffn, columns=hidden, std=std, seed=seed + 3), part, bias=False)
        self.down = RowLinear(Normal(rows=hidden, columns=ffn, std=into_residual, seed=seed + 4), part, bias=False)
        if config.qk_norm:
            self.q_norm, self.k_norm = (HeadNorm(width, config.epsilon) for _ in range(2))

    def _attend(self, x: Entry, starts: Tensor | None) -> Tensor:
        qkv = self.qkv(x)
        batch, length, _ = qkv.shape
        grouped = qkv.view(batch, length, -1, self.queries + 2, self.config.width_of_head)
        q, k, v = grouped.split((self.queries, 1, 1), dim=3)
        q, k, v = (heads.flatten(2, 3).transpose(1, 2) for heads in (q, k, v))  # [b, heads, s, width]
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        cosines, sines = rotations(self.config, length, q.dtype, q.device)
        if starts is not None:
            cosines, sines = (table[positions(starts)].unsqueeze(1) for table in (cosines, sines))
        q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        mixed = self._mix(q, k, v, visible(starts), enable_gqa=self.queries > 1)
        return mixed.transpose(1, 2).reshape(batch, length, -1)

    def _widen(self, x: Entry) -> Tensor:
        return functional.silu(self.gate(x)) * self.up(x)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return `x` [b, heads, s, width] turned by its position; the pairs are (i, i + width / 2), as transformers has."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


@functools.lru_cache(maxsize=2)  # one table for all blocks of a rank
def rotations(config: ModelConfig, length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles of every position, each [length, width of a head]."""
    width = config.width_of_head
    exponents = torch.arange(0, width, 2, dtype=torch.int64, device=device).float() / width
    frequencies = stretched(1.0 / config.theta**exponents, config.rope_scaling)
    angles = torch.outer(torch.arange(length, device=device).float(), frequencies)
    whole = torch.cat((angles, angles), dim=-1)
    return whole.cos().to(dtype), whole.sin().to(dtype)


def stretched(frequencies: Tensor, scaling: RopeScaling | None) -> Tensor:
    """Return the rotary frequencies after `scaling` (llama3: as in the model card's code of Llama 3.1)."""
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_sequence * frequencies / (2 * math.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
