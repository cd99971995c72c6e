"""Attention of tokens to earlier ones of their document, without a matrix of the whole sequence.

Documents are attended to one by one, so that memory grows with them. Where a window, ALiBi or capped scores need a
matrix, a document is cut into runs of queries, each with the keys that it sees. What such a matrix holds depends on the
distance of query and key alone: one of _ROWS rows serves every run of a rank.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from opsctl.trainer.footprint import ATTENTION_ROWS as _ROWS


def made_once(make: Callable[..., Any]) -> Any:
    """Keep the last tables that a function has made, for all blocks of a rank; compiled code takes them for constants.

    Without this, the compiler looks through the cache and makes the tables in every block.
    """
    cached = functools.lru_cache(maxsize=4)(make)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # mypy does not read torch
    def get(*arguments: Any, **options: Any) -> Any:
        return cached(*arguments, **options)

    get.cache_clear = cached.cache_clear
    return get


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The attention of one block."""

    queries: int = 1
    """Heads of queries that share keys and values."""
    window: int | None = None
    """Tokens that a token attends to, itself included; None for all earlier ones."""
    slopes: tuple[float, ...] | None = None
    """ALiBi's slope of every head."""
    scale: float | None = None
    """Factor of the scores; 1/√width if None."""
    cap: float | None = None
    """Largest absolute score."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None, drop: float) -> Tensor:
        """Return the mixed values of all heads, [b, heads, s, width], of q, k and v in the same form.

        `starts` [b, s] as in gpt.py; None for samples of one document. `drop` is the probability of dropout.
        """
        if starts is None:
            return self._attend(q, k, v, longest=q.shape[2], drop=drop)
        return self._by_documents(q, k, v, starts, drop)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # mypy does not read torch
    def _by_documents(self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, drop: float) -> Tensor:
        samples = []
        for number, lengths in enumerate(_lengths(starts)):
            parts = (x[number : number + 1].split(lengths, dim=2) for x in (q, k, v))
            mixed = [self._attend(*document, longest=q.shape[2], drop=drop) for document in zip(*parts, strict=True)]
            samples.append(torch.cat(mixed, dim=2))
        return torch.cat(samples)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, *, longest: int, drop: float) -> Tensor:
        """Return the mixed values of one document, in samples of `longest` tokens."""
        length = q.shape[2]
        window = min(self.window or length, length)
        if window == length and self.slopes is None and self.cap is None:
            return self._mix(q, k, v, None, drop)
        runs = []
        for first in range(0, length, _ROWS):
            last, lowest = min(first + _ROWS, length), max(0, first - window + 1)
            whole = matrix_of(self.slopes, self.window, longest, q.dtype, q.device)
            matrix = whole[..., first - last :, lowest - last :]
            if q.is_cuda and (last - lowest) % 8:  # a kernel takes no numbers that begin at such an address
                matrix = matrix.contiguous()
            runs.append(self._mix(q[:, :, first:last], k[:, :, lowest:last], v[:, :, lowest:last], matrix, drop))
        return torch.cat(runs, dim=2)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, matrix: Tensor | None, drop: float) -> Tensor:
        if self.cap is None:
            options: Any = {"scale": self.scale, "dropout_p": drop, "enable_gqa": self.queries > 1}
            return functional.scaled_dot_product_attention(q, k, v, matrix, is_causal=matrix is None, **options)
        k, v = (heads.repeat_interleave(self.queries, dim=1) for heads in (k, v))
        assert matrix is not None  # as with every cap
        scores = capped(q @ k.transpose(2, 3) * (self.scale or q.shape[-1] ** -0.5), self.cap)
        shares = scores.masked_fill(~matrix, -math.inf).float().softmax(-1).to(q.dtype)
        return functional.dropout(shares, drop) @ v


def capped(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else torch.tanh(x / cap) * cap


@functools.lru_cache(maxsize=1)  # one wait for the device, for all blocks of a stage
def _lengths(starts: Tensor) -> list[list[int]]:
    """Return the lengths of the documents of every sample."""
    return [list(Counter(sample).values()) for sample in starts.tolist()]


@made_once
def matrix_of(
    slopes: tuple[float, ...] | None, window: int | None, longest: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return what a run of queries sees of the keys up to its last query: both count from their ends.

    [rows, keys], true for earlier tokens in the window; with slopes ALiBi's bias [1, heads, rows, keys], -slope x
    distance, and -inf for the others.
    """
    rows = min(_ROWS, longest)
    keys = min(longest, rows + window - 1) if window else longest
    distance = (torch.arange(rows, device=device) + keys - rows).unsqueeze(1) - torch.arange(keys, device=device)
    is_visible = (distance >= 0) & (distance < (window or longest))
    if slopes is None:
        return is_visible
    bias = torch.empty(1, len(slopes), rows, keys, dtype=dtype, device=device)
    for head, slope in zip(bias[0], slopes, strict=True):  # all at once in fp32 would take five times the memory
        head.copy_((-slope * distance).masked_fill_(~is_visible, -math.inf))
    return bias


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return ALiBi's slope for every head: 2^(-8/n), 2^(-16/n), … (Press et al. 2021).

    If n is not a power of two: the slopes of the next lower power, then every other slope of the next higher power.
    """
    power = 2 ** math.floor(math.log2(heads))
    finer = [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
    return tuple([2 ** (-8 * (i + 1) / power) for i in range(power)] + finer)
