"""Stages whose passes sleep, under DeepSpeed's and torch's pipeline schedules: for benchmarks/pipeline_schedules.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from itertools import repeat
from os import devnull
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deepspeed
import torch
from deepspeed.pipe import DualPipeVModule, LayerSpec, PipelineModule
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn import functional

if TYPE_CHECKING:
    from pipeline_schedules import Case

WIDTH = 8
Step = Callable[[int], object]
"""Takes one step with so many micro-batches."""


class Sleep(torch.autograd.Function):  # type: ignore[misc]  # mypy does not read torch
    """The identity. Takes `forward_s` in the forward pass and `backward_s` in the backward pass."""

    slept_s = 0.0
    """Of this rank."""
    is_off = False

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        Sleep.take(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        Sleep.take(ctx.backward_s)
        return gradient, None, None

    @staticmethod
    def take(seconds: float) -> None:
        if not Sleep.is_off:
            Sleep.slept_s += seconds
            time.sleep(seconds)


class Stage(nn.Module):  # type: ignore[misc]  # mypy does not read torch
    """A stage: the gradients of its input and of its weight each take as long as its forward pass."""

    def __init__(self, forward_s: float) -> None:
        super().__init__()
        self.forward_s = forward_s
        self.shift, self.scale = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        scale = Sleep.apply(self.scale, 0.0, self.forward_s)
        return Sleep.apply(x + self.shift, self.forward_s, self.forward_s) * scale


def torch_step(case: Case, forward_s: float) -> Step:
    """Return the step of a schedule of torch.distributed.pipelining."""
    kind = getattr(schedules, case.name)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    count = ranks * case.chunks
    numbers = [rank] if case.chunks == 1 else [rank, count - 1 - rank if case.is_v else ranks + rank]

    @cache
    def make(micro_batches: int) -> Any:
        stages = [
            PipelineStage(Stage(forward_s / case.chunks), number, count, torch.device("cpu")) for number in numbers
        ]
        one_or_two = stages if case.chunks > 1 else stages[0]
        return kind(one_or_two, n_microbatches=micro_batches, loss_fn=functional.mse_loss)

    def step(micro_batches: int) -> None:
        inputs = [torch.zeros(micro_batches, WIDTH)] if rank == 0 else []
        target = torch.ones(micro_batches, WIDTH) if count - 1 in numbers else None
        make(micro_batches).step(*inputs, target=target)

    return step


def deepspeed_step(case: Case, forward_s: float) -> Step:
    """Return the step of DeepSpeed's pipeline engine."""
    ranks = torch.distributed.get_world_size()
    layers = [LayerSpec(Stage, forward_s / case.chunks) for _ in range(ranks * case.chunks)]
    kind = DualPipeVModule if case.is_v else PipelineModule
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2 * ranks, "steps_per_print": None}
    with Path(devnull).open("w") as nowhere, redirect_stdout(nowhere):
        module = kind(layers, num_stages=ranks, loss_fn=functional.mse_loss, partition_method="uniform")
        optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)

    def step(micro_batches: int) -> None:
        if micro_batches != engine.train_batch_size():
            engine.set_train_batch_size(micro_batches)
        batches: Iterator[tuple[Tensor, Tensor]] = repeat((torch.zeros(1, WIDTH), torch.ones(1, WIDTH)))
        engine.train_batch(data_iter=batches)

    return step
