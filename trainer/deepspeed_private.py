"""The private parts of DeepSpeed that the trainer uses, all of them: a new release can break no other module.

tests/integration/trainer/test_private_deepspeed.py names the releases that the trainer was run with.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from deepspeed.runtime import compiler
from deepspeed.runtime.pipe import schedule


def replace(engine: Any, instruction: type, change: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
    """Carry out an instruction of DeepSpeed's schedule by what `change` makes of its action, a method of the engine."""
    actions = engine._INSTRUCTION_MAP
    engine._INSTRUCTION_MAP = actions | {instruction: change(actions[instruction])}


def summed_gradient(engine: Any, parameter: torch.Tensor) -> Any:
    """Return the gradient of a parameter after the backward passes of a step, a tensor."""
    return parameter._hp_grad if engine.using_bf16_optimizer else parameter.grad


def leave_scripts_out(engine: Any) -> None:
    """Copy no scripts into checkpoints: DeepSpeed does so on rank 0 alone, which alone would raise on a full disk."""
    engine._copy_recovery_script = lambda _: None


def expect_universal(engine: Any, *, universal: bool) -> None:
    """Tell the engine the kind of the checkpoint that it loads next."""
    engine._config.load_universal_checkpoint = universal


def keep_uncompiled() -> None:
    """Do not compile DeepSpeed's communication on first use, which takes 30 s, ninja and a compiler."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def layers_of(module: PipelineModule) -> tuple[int, list[Any]]:
    """Return the number of this stage's first layer in the whole model, and the stage's list of layers."""
    return module._local_start, module.forward_funcs


def layers_by_number(module: PipelineModule) -> dict[int, torch.nn.Module]:
    """Return this stage's layers by their number in the whole model; a tied output is layer 0 again."""
    layers, (first, functions) = {}, layers_of(module)
    for place, layer in enumerate(functions):
        is_tied = isinstance(layer, partial) and not isinstance(layer, torch.nn.Module)
        layers[0 if is_tied else first + place] = layer.args[0] if is_tied else layer
    return layers


def sum_in_fp32(engine: Any) -> None:
    """Sum and average bf16 gradients in fp32."""
    replace(engine, schedule.ReduceGrads, lambda _: _average_gradients)
    _sum_as_they_come(engine.optimizer)


def _sum_as_they_come(optimizer: Any) -> None:
    """Add every bf16 gradient to its fp32 sum as soon as it is complete, and free it.

    In place of DeepSpeed's hooks, whose bookkeeping costs the host 30 µs more, per parameter and micro-batch.
    """
    for hook in optimizer._grad_acc_hooks:
        hook.remove()
    optimizer._grad_acc_hooks = []
    for group, parameters in enumerate(optimizer.bf16_groups):
        for number, parameter in enumerate(parameters):
            parameter._hp_grad = optimizer.fp32_groups_gradients[group][number]
            add = partial(_add_to_sum, optimizer, group, number)
            optimizer._grad_acc_hooks.append(parameter.register_post_accumulate_grad_hook(add))


def _add_to_sum(optimizer: Any, group: int, number: int, parameter: torch.Tensor) -> None:
    parameter._hp_grad.add_(parameter.grad.reshape(-1))
    parameter.grad = None
    optimizer.fp32_groups_has_gradients[group][number] = True


def _average_gradients(engine: Any) -> None:
    """Average the fp32 sums of bf16 gradients over the data-parallel ranks, in fp32 and where they lie.

    DeepSpeed rounds them to bf16 on the way, and copies them there and back, even with a single rank.
    """
    if engine.dp_world_size == 1:
        return
    gradients, _ = engine.optimizer.get_grads_for_reduction()
    for flat in gradients:
        dist.all_reduce(flat, group=engine.grid.get_data_parallel_group())
        flat.mul_(1 / engine.dp_world_size)


class Stages(PipelineModule):  # type: ignore[misc]  # DeepSpeed has no types
    """The stages of the model, cut before the layers `first` if given, else as DeepSpeed cuts."""

    def __init__(self, first: list[int] | None, *arguments: Any, **options: Any) -> None:
        self._first = first
        super().__init__(*arguments, **options)

    def _partition_layers(self, method: str = "uniform") -> None:
        if self._first is None:
            super()._partition_layers(method=method)
            return
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = self._first
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def import_muon_uncompiled() -> None:
    """Import DeepSpeed's Muon optimizer without torch.compile, which takes 1 s of CPU per rank."""
    original_compile, compiler.compile = compiler.compile, lambda: compiler.dummy_decorator
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        compiler.compile = original_compile
