"""ALiBi by flex_attention, which computes the bias inside the kernel: no [heads, sequence, sequence] in memory.

Only inside a compiled block: uncompiled, flex_attention keeps all scores in memory.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


class FlexAlibi:
    """Causal attention with ALiBi's bias for one length."""

    def __init__(self, slopes: tuple[float, ...], length: int, device: torch.device) -> None:
        self._slopes = torch.tensor(slopes, device=device)
        self._mask = create_block_mask(_is_visible, None, None, length, length, device=device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the mixed values of q, k and v, all [b, heads, s, width]."""
        slopes = self._slopes

        def biased(score: Tensor, _: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return score - slopes[head] * (query - key)

        mixed: Tensor = flex_attention(q, k, v, score_mod=biased, block_mask=self._mask)
        return mixed


def _is_visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key
