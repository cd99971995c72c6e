"""Cross entropy in fp32 without a copy of the logits in fp32.

Rows are processed in chunks: a copy of all logits in fp32, its softmax and their gradients would take three to seven
times the memory of logits in bf16. With several tensor ranks, no rank holds the logits of the whole vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from opsctl.trainer.footprint import CHUNK_ELEMENTS
from opsctl.trainer.tensor_parallel import Slice, local_rows

_CACHED_ELEMENTS = 1 << 18
"""1 MiB in fp32."""


def cross_entropy(scores: Tensor, labels: Tensor | tuple[Tensor, Tensor], part: Slice) -> Tensor:
    """Return the mean cross entropy in fp32 of scores [b, s, part of the vocabulary] and labels [b, s].

    Labels may be a pair: labels, and their weights in the mean, [b, s].
    """
    labels, weights = (labels, None) if isinstance(labels, Tensor) else labels
    losses: Tensor = _CrossEntropy.apply(scores.flatten(0, 1), labels.flatten(), part)
    return losses.mean() if weights is None else losses.mul(weights.flatten()).mean()


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch
    """Cross entropy per row. Saves the scores as they are; the backward pass computes the softmax again."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, part: Slice) -> Tensor:
        highest = part.sum(scores.amax(dim=1).float(), op=dist.ReduceOp.MAX)
        places, elsewhere = local_rows(labels, scores.shape[1], part)
        target = scores.gather(1, places.unsqueeze(1)).squeeze(1).float().sub_(highest).masked_fill_(elsewhere, 0)
        total = torch.empty_like(highest)
        for rows in _chunks(scores):
            total[rows] = _exponentials(scores, highest, rows).sum(dim=1)
        total, target = part.sum(torch.stack((total, target)))
        ctx.save_for_backward(scores, highest, total, places, elsewhere)
        return total.log() - target

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        scores, highest, total, places, elsewhere = ctx.saved_tensors
        gradients, is_here = torch.empty_like(scores), (~elsewhere).float().unsqueeze(1)
        for rows in _chunks(scores):
            chances = _exponentials(scores, highest, rows).div_(total[rows].unsqueeze(1))
            column = places[rows].unsqueeze(1)
            chances.scatter_(1, column, chances.gather(1, column) - is_here[rows])
            gradients[rows] = chances.mul_(gradient[rows].unsqueeze(1))
        return gradients, None, None


def _exponentials(scores: Tensor, highest: Tensor, rows: slice) -> Tensor:
    return (scores[rows].float() - highest[rows].unsqueeze(1)).exp_()


def _chunks(scores: Tensor) -> Iterator[slice]:
    """Yield slices of rows: on a CPU as many as its cache holds, else CHUNK_ELEMENTS scores each."""
    rows, columns = scores.shape
    size = max(1, (_CACHED_ELEMENTS if scores.device.type == "cpu" else CHUNK_ELEMENTS) // columns)
    for first in range(0, rows, size):
        yield slice(first, first + size)
