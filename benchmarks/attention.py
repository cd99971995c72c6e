"""Attention of documents one by one, against a matrix of all scores of a sample.

python -P benchmarks/attention.py       a table, as in docs/explanation/performance.md; about two minutes

CPU time of a forward and a backward pass, one thread, four samples, 8 heads of width 64, fp32, the fastest of three. A
ratio below 1: documents one by one are faster.
"""

import time
from collections.abc import Callable

import torch
from torch.nn import functional

from opsctl.trainer.attention import Attention, alibi_slopes

SAMPLES, HEADS, WIDTH = 4, 8, 64
LENGTHS = (1024, 2048, 4096)
MEANS = (20, 300, None)
"""Tokens of a document on average; None for one document."""


def draw_starts(length: int, mean: int | None) -> torch.Tensor:
    """Return the beginnings of documents of random lengths, [samples, length]."""
    begins = torch.rand(SAMPLES, length, generator=torch.Generator().manual_seed(1)) < (1 / mean if mean else 0)
    return (begins * torch.arange(length)).cummax(1).values


def time_passes(attend: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> float:
    """Return the seconds of the processor for a forward and a backward pass."""
    found = []
    for _ in range(3):
        began = time.process_time()
        torch.autograd.grad(attend(*inputs).sum(), inputs)
        found.append(time.process_time() - began)
    return min(found)


def compare(attention: Attention, length: int, mean: int | None) -> float:
    """Return the time of documents one by one, divided by that of a matrix of all scores."""
    starts = draw_starts(length, mean)
    distance = torch.arange(length).unsqueeze(1) - torch.arange(length)
    seen = (distance >= 0) & (distance < (attention.window or length)) & (starts.unsqueeze(2) == starts.unsqueeze(1))
    matrix = seen.unsqueeze(1)
    if attention.slopes:
        bias = -torch.tensor(attention.slopes).view(-1, 1, 1) * distance
        matrix = bias.masked_fill(~matrix, -torch.inf)
    inputs = [torch.randn(SAMPLES, HEADS, length, WIDTH).requires_grad_() for _ in range(3)]
    apart = time_passes(lambda *inputs: attention(*inputs, starts if mean else None, 0.0), inputs)
    return apart / time_passes(lambda *inputs: functional.scaled_dot_product_attention(*inputs, matrix), inputs)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print("| tokens of a sample | documents of 20 tokens on average | of 300 | one document |")
    print("| ---: | ---: | ---: | ---: |")
    for length in LENGTHS:
        ratios = [compare(Attention(), length, mean) for mean in MEANS]
        print(f"| {length:,} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |", flush=True)
    for name, attention in (("ALiBi", Attention(slopes=alibi_slopes(HEADS))), ("window of 256", Attention(window=256))):
        print(f"{name}, 2,048 tokens: {compare(attention, 2048, None):.2f}")


if __name__ == "__main__":
    main()
