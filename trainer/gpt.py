"""The layers of a decoder; families/ says which of their parts a model has.

Activations between layers are [micro_batch, tokens that a rank holds, hidden]. Where documents are kept apart, layers
hand on `starts` [b, s] beside them: the place in the sample at which the document of a token begins. Initial weights do
not depend on the layout. The formulas follow transformers, in the order of its roundings, so that exported weights give
the same logits there.
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from opsctl.trainer import random_numbers, tensor_parallel
from opsctl.trainer.attention import Attention, alibi_slopes, capped, made_once
from opsctl.trainer.model_config import ModelConfig, RopeScaling
from opsctl.trainer.model_size import block_matrices
from opsctl.trainer.random_numbers import Normal
from opsctl.trainer.tensor_parallel import ColumnLinear, Entry, RowLinear, Slice, into, marked, share_gradient, total

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


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Return `x` [b, heads, s, width] turned by its position; the pairs are (i, i + width / 2), as transformers has."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


@made_once
def rotations(
    config: ModelConfig, length: int, dtype: torch.dtype, device: torch.device, *, is_local: bool = False
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles of every position, each [length, width of a head].

    `is_local`: for a block with a window, which may have another base and is never stretched then.
    """
    theta = config.local_theta if is_local else config.theta
    scaling = None if is_local and config.kind.local_theta else config.rope_scaling
    width = config.width_of_head
    exponents = torch.arange(0, width, 2, dtype=torch.int64, device=device).float() / width
    frequencies = stretched(1.0 / theta**exponents, scaling)
    angles = torch.outer(torch.arange(length, device=device).float(), frequencies)
    whole = torch.cat((angles, angles), dim=-1)
    factor = 1.0
    if scaling and scaling.kind == "yarn":
        factor = scaling.attention_factor or 0.1 * math.log(max(1.0, scaling.factor)) + 1
    return (whole.cos() * factor).to(dtype), (whole.sin() * factor).to(dtype)


def stretched(frequencies: Tensor, scaling: RopeScaling | None) -> Tensor:
    """Return the rotary frequencies after `scaling` (llama3: as in the model card's code of Llama 3.1)."""
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    unstretched = _unstretched_by_place if scaling.kind == "yarn" else _unstretched_by_turns
    smooth = unstretched(frequencies, scaling).clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies


def _unstretched_by_turns(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Return how much of every frequency stays: in proportion to its turns in the original sequence."""
    turns = scaling.original_sequence * frequencies / (2 * math.pi)
    return (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)


def _unstretched_by_place(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """As `_unstretched_by_turns`, in proportion to the place among the pairs of a head, between two whole places."""
    count = len(frequencies)
    log_theta = -math.log(float(frequencies[-1])) * count / (count - 1) if count > 1 else 1.0

    def place(turns: float) -> float:
        return count * math.log(scaling.original_sequence / (turns * 2 * math.pi)) / log_theta

    first = max(math.floor(place(scaling.high_freq_factor)), 0)
    last = min(math.ceil(place(scaling.low_freq_factor)), 2 * count - 1)
    places = torch.arange(count, dtype=torch.float32, device=frequencies.device)
    return 1 - (places - first) / max(last - first, 0.001)


@carries_starts
class TokenEmbedding(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Maps tokens [b, s] to vectors [b, s, hidden]; on the last stage, maps vectors to logits by the same weight.

    The layer has no other parameter: DeepSpeed synchronizes only the tied weight between the two stages.
    """

    def __init__(self, config: ModelConfig, seed: int, part: Slice) -> None:
        super().__init__()
        self.part, self.cap = part, config.logit_cap
        whole = Normal(rows=config.vocabulary, columns=config.hidden, std=initial_std(config), seed=seed)
        self.weight = tensor_parallel.sliced(whole, part, dim=0)

    def forward(self, tokens: Tensor) -> Tensor:
        return tensor_parallel.embedding(tokens, self.weight, self.part)


def logits(embedding: TokenEmbedding, carried: Carried) -> Tensor:
    """Return the logits of the next tokens, [b, s, this rank's slice of the vocabulary]."""
    return capped(into(activations(carried), embedding.part).times(embedding.weight), embedding.cap)


class OutputProjection(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """As `logits`, by a weight of its own."""

    def __init__(self, config: ModelConfig, seed: int, part: Slice) -> None:
        super().__init__()
        weight = Normal(rows=config.vocabulary, columns=config.hidden, std=initial_std(config), seed=seed)
        self.part, self.projection = part, ColumnLinear(weight, part, bias=False)
        self.cap = config.logit_cap

    def forward(self, carried: Carried) -> Tensor:
        return capped(self.projection(into(activations(carried), self.part)), self.cap)


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
class EmbeddingDropout(nn.Dropout):  # type: ignore[misc]  # mypy does not read torch
    """Follows the token embedding, and scales it by √hidden for some families; has no parameters."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.dropout)
        self.scale = config.hidden**0.5 if config.kind.scales_embedding else None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is not None:
            x = x * float(torch.tensor(self.scale, dtype=x.dtype))  # rounded as transformers rounds it
        return super().forward(x)


@carries_starts
class LayerNorm(nn.LayerNorm):  # type: ignore[misc]  # mypy does not read torch
    """The norm before the output, and those of a block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.hidden)


@carries_starts
class RmsNorm(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """Divides by the root of the mean square, in fp32 (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, config: ModelConfig, width: int | None = None) -> None:
        super().__init__()
        width, self.eps, self.adds_one = width or config.hidden, config.epsilon, config.kind.norm == "rms-plus-one"
        self.weight = nn.Parameter(torch.zeros(width) if self.adds_one else torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        normal = exact * torch.rsqrt(self._mean(exact.square()) + self.eps)
        if self.adds_one:
            return (normal * (1 + self.weight.float())).to(x.dtype)
        return self.weight * normal.to(x.dtype)

    def _mean(self, squares: Tensor) -> Tensor:
        return squares.mean(-1, keepdim=True)


NORMS = {"layer": LayerNorm, "rms": RmsNorm, "rms-plus-one": RmsNorm}


class HeadNorm(RmsNorm):
    """The norm of every head of queries or keys; every tensor rank normalises its own heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.width_of_head)
        share_gradient(self.weight)


class AllHeadsNorm(RmsNorm):
    """The norm of the queries or keys of all heads together, of which every tensor rank holds some."""

    def __init__(self, config: ModelConfig, heads: int, part: Slice) -> None:
        super().__init__(config, len(part.range(heads)) * config.width_of_head)
        self.weight, self.part = marked(self.weight.detach(), part), part

    def forward(self, x: Tensor) -> Tensor:
        normal: Tensor = super().forward(x.flatten(2))
        return normal.view_as(x)

    def _mean(self, squares: Tensor) -> Tensor:
        return total(squares.sum(-1, keepdim=True), self.part) / (squares.shape[-1] * self.part.size)


@carries_starts
class Block(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A transformer block: attention, then feed-forward, both added to the residual stream."""

    def __init__(self, config: ModelConfig, number: int, seed: int, part: Slice) -> None:
        super().__init__()
        self.part, self.seed, self.drop, self.config = part, seed, config.dropout, config
        kind = config.kind
        heads = part.range(config.heads)
        # Rows of qkv are [group, its queries, key, value, width], so that a slice holds whole groups.
        self.queries = config.heads // config.group_count
        self.rotates, self.window = config.rotates(number), config.window_of(number)
        self.attention: Callable[..., Tensor] = Attention(  # compiled_blocks may replace it
            queries=self.queries,
            window=self.window,
            slopes=alibi_slopes(config.heads)[heads.start : heads.stop] if kind.positions == "alibi" else None,
            scale=None if config.query_width is None else config.query_width**-0.5,
            cap=config.score_cap,
        )
        # Compiled code reads no family.
        self.is_gated = kind.is_gated
        self.activation = functional.silu if kind.activation == "silu" else _gelu
        for name in ("norm1", "norm2", "norm3", "norm4"):
            setattr(self, name, NORMS[kind.norm](config) if name in kind.block_norms else nn.Identity())
        for place, (name, matrix) in enumerate(block_matrices(config).items()):
            std = initial_std(config) / (math.sqrt(2 * config.layers) if matrix.axis else 1.0)
            drawn = Normal(rows=matrix.shape[0], columns=matrix.shape[1], std=std, seed=seed + place)
            setattr(self, name, (RowLinear if matrix.axis else ColumnLinear)(drawn, part, bias=config.has_bias(name)))
        self.q_norm: Any = None
        if config.qk_norms == "head":
            self.q_norm, self.k_norm = HeadNorm(config), HeadNorm(config)
        elif config.qk_norms == "all":
            self.q_norm = AllHeadsNorm(config, config.heads, part)
            self.k_norm = AllHeadsNorm(config, config.group_count, part)

    def forward(self, x: Tensor, starts: Tensor | None) -> Tensor:
        if self.drop and self.training:
            random_numbers.vary(self.seed)
        x = x + self._drop(self.norm3(self.out(self._attend(into(self.norm1(x), self.part), starts))))
        return x + self._drop(self.norm4(self.down(self._widen(into(self.norm2(x), self.part)))))

    def _attend(self, x: Entry, starts: Tensor | None) -> Tensor:
        qkv = self.qkv(x)
        batch, length, _ = qkv.shape
        grouped = qkv.view(batch, length, -1, self.queries + 2, self.config.width_of_head)
        q, k, v = (heads.flatten(2, 3) for heads in grouped.split((self.queries, 1, 1), dim=3))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))  # [b, heads, s, width]
        if self.rotates:
            q, k = self._rotated(q, k, starts)
        return self._mix(q, k, v, starts).transpose(1, 2).reshape(batch, length, -1)

    def _rotated(self, q: Tensor, k: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
        is_local = self.window is not None
        cosines, sines = rotations(self.config, q.shape[2], q.dtype, q.device, is_local=is_local)
        if starts is not None:
            cosines, sines = (table[positions(starts)].unsqueeze(1) for table in (cosines, sines))
        return rotate(q, cosines, sines), rotate(k, cosines, sines)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None) -> Tensor:
        """Return the mixed values of all heads, [b, heads, s, width]."""
        if not (self.drop and self.training):
            return self.attention(q, k, v, starts, 0.0)
        with self.part.own_randomness():  # every rank has its own heads
            return self.attention(q, k, v, starts, self.drop)

    def _widen(self, x: Entry) -> Tensor:
        if self.is_gated:
            return self.activation(self.gate(x)) * self.up(x)
        return self.activation(self.up(x))

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.drop, self.training) if self.drop else x


_gelu = functools.partial(functional.gelu, approximate="tanh")


def initial_std(config: ModelConfig) -> float:
    return config.init_std or math.sqrt(1 / (3 * config.hidden))
