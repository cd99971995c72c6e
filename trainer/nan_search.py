"""Search for the layer in which a loss or gradient first became non-finite.

DeepSpeed takes no step if the norm of the gradient is not finite, so the weights have not changed. The search runs the
same batch through the layers again and checks the inputs and outputs of every layer.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from opsctl.trainer.checkpoint.rank_files import tensors_in
from opsctl.trainer.deepspeed_private import layers_of
from opsctl.trainer.engine import Engine
from opsctl.trainer.process_groups import Control


class Pass(IntEnum):
    """The pass in which a value was not finite, in order of time."""

    BEFORE = 0
    FORWARD = 1
    BACKWARD = 2
    WEIGHT_GRADIENT = 3


@dataclass(frozen=True, slots=True, order=True)
class NonFinite:
    """A value that is not finite; the smallest of several is the origin."""

    when: Pass
    turn: int
    """Number of the rank's micro-batch."""
    place: int
    """Number of the layer; negative in the backward pass, which visits layers in reverse."""
    inner: int
    """Number of the inner module, in order of time; 0 in the backward pass and for the layer itself."""
    description: str
    rank: int = 0

    def __str__(self) -> str:
        turn = f", micro-batch {self.turn}" if self.turn else ""
        return f"{self.description}, on rank {self.rank}{turn}"


NO_LAYER = "no single layer: the sum overflowed, or the second run was finite and the hardware is suspect"


def find_origin(engine: Engine, batches: Iterator[tuple[Tensor, Tensor]], *, consumed: int, control: Control) -> str:
    """Return a description of the origin, the same on every rank. The engine cannot train afterwards."""
    search = _Search(rank=control.process.rank)
    search.attach(engine.deepspeed.module)
    engine.rerun(batches, consumed=consumed)
    non_finites = [first for first in control.gather(min(search.non_finites, default=None)) if first is not None]
    return str(min(non_finites)) if non_finites else NO_LAYER


@dataclass(slots=True, kw_only=True)
class _Search:
    """Records non-finite values in the layers of this rank."""

    rank: int
    turn: int = 0
    non_finites: list[NonFinite] = field(default_factory=list)
    _inner_calls: int = 0
    """Calls of inner modules of the current layer so far."""
    _inner_origin: str = ""
    """The first inner module of the current layer whose output is not finite."""
    _inner_number: int = 0
    """Its number among the calls; 0 if the layer itself is the first."""

    def attach(self, module: Any) -> None:
        """Hook into the layers of a PipelineModule, their inner modules and parameters, and the loss."""
        module.register_forward_pre_hook(self._count_turn)
        first, layers = layers_of(module)
        for place, layer in enumerate(layers):
            function = getattr(layer, "func", layer)  # the forward of a tied layer is a partial of another function
            owner = layer.args[0] if function is not layer else layer
            name = f"layer {first + place} ({type(owner).__name__})"
            self._hook_layer(owner, first + place, name)
            layers[place] = self._wrap(layer, first + place, name)
        if module.loss_fn is not None:
            module.loss_fn = self._wrap(module.loss_fn, first + len(layers), "the loss")

    def _count_turn(self, *_: object) -> None:
        self.turn += 1

    def _hook_layer(self, owner: nn.Module, place: int, name: str) -> None:
        for parameter_name, parameter in owner.named_parameters():
            if not _is_finite(parameter):
                self._record(Pass.BEFORE, place, f"{name} already: its {parameter_name}")
            description = f"gradient of {parameter_name} in {name}"
            parameter.register_hook(self._gradient_hook(Pass.WEIGHT_GRADIENT, place, description))
        for inner_name, inner in owner.named_modules():
            if inner_name:
                inner.register_forward_hook(lambda _, args, output, n=inner_name: self._check_inner(n, args, output))

    def _check_inner(self, name: str, args: tuple[Any, ...], output: Tensor) -> None:
        self._inner_calls += 1
        if not self._inner_origin and not _is_finite(output):
            self._inner_number = self._inner_calls
            self._inner_origin = f"out of {name}" if _is_finite(*args) else f"before {name}"

    def _wrap(self, layer: Callable[..., Tensor], place: int, name: str) -> Callable[..., Tensor]:
        def run(*args: Tensor) -> Tensor:
            self._inner_calls, self._inner_number, self._inner_origin = 0, 0, ""
            output = layer(*args)
            # With a cut sequence, the slice of another rank may be the one that shows it.
            if _is_finite(*args) and (self._inner_origin or not _is_finite(output)):
                floats = (x for x in tensors_in(args) if x.is_floating_point())
                largest = max((float(x.detach().abs().max()) for x in floats), default=math.nan)
                detail = ", ".join(filter(None, (self._inner_origin, f"from numbers up to {largest:.3g}")))
                self._record(Pass.FORWARD, place, f"{name}, {detail}", inner=self._inner_number)
            for x in tensors_in(args):
                if x.requires_grad:
                    x.register_hook(self._gradient_hook(Pass.BACKWARD, -place, f"backward pass of {name}"))
            return output

        return run

    def _gradient_hook(self, when: Pass, place: int, description: str) -> Callable[[Tensor], None]:
        turn = self.turn

        def check(gradient: Tensor) -> None:
            if not _is_finite(gradient):
                self._record(when, place, description, turn=turn)

        return check

    def _record(self, when: Pass, place: int, description: str, *, turn: int | None = None, inner: int = 0) -> None:
        turn = self.turn if turn is None else turn
        self.non_finites.append(NonFinite(when, turn, place, inner, description, self.rank))


def _is_finite(*values: Any) -> bool:
    return all(bool(torch.isfinite(x).all()) for x in tensors_in(values) if x.is_floating_point())
