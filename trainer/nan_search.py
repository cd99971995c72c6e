"""Where a loss or gradient that is not a number began.

DeepSpeed takes no step when the norm of the gradient is not finite, so the weights are what they were: the same batch
goes through them once more, and what enters and leaves each layer is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn

from opsctl.trainer.engine import Engine
from opsctl.trainer.process_groups import Control


class Pass(IntEnum):
    """When it was seen; the first of them is where it began."""

    BEFORE = 0
    FORWARD = 1
    BACKWARD = 2
    WEIGHT_GRADIENT = 3


@dataclass(frozen=True, slots=True, order=True)
class Sighting:
    """Something that is not finite; the least of several is where it began."""

    when: Pass
    turn: int
    """Micro-batch of its rank."""
    place: int
    """Number of the layer; counted down in the backward pass."""
    what: str
    rank: int = 0

    def __str__(self) -> str:
        turn = f", micro-batch {self.turn}" if self.turn else ""
        return f"{self.what}, on rank {self.rank}{turn}"


NOWHERE = "no layer by itself: the sum overflowed, or it did not happen again and the hardware is suspect"


def where(engine: Engine, batches: Iterator[tuple[Tensor, Tensor]], *, consumed: int, control: Control) -> str:
    """Where it began, the same words on every rank. Not fit for training afterwards."""
    watch = _Watch(rank=control.process.rank)
    watch.over(engine.deepspeed.module)
    engine.rerun(batches, consumed=consumed)
    sightings = [first for first in control.gather(min(watch.sightings, default=None)) if first is not None]
    return str(min(sightings)) if sightings else NOWHERE


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Looks at everything that passes through the layers of this rank."""

    rank: int
    turn: int = 0
    sightings: list[Sighting] = field(default_factory=list)
    _inside: str = ""
    """The innermost module of the current layer that gave the first of them."""

    def over(self, module: Any) -> None:
        """Watch the layers of a PipelineModule, its loss, and what they hold."""
        module.register_forward_pre_hook(self._next_turn)
        first = module._local_start
        for place, layer in enumerate(module.forward_funcs):
            held = getattr(layer, "func", layer)  # a tied layer's forward is a partial of another function
            owner = layer.args[0] if held is not layer else layer
            name = f"layer {first + place} ({type(owner).__name__})"
            self._hold(owner, first + place, name)
            module.forward_funcs[place] = self._watched(layer, first + place, name)
        if module.loss_fn is not None:
            module.loss_fn = self._watched(module.loss_fn, first + len(module.forward_funcs), "the loss")

    def _next_turn(self, *_: object) -> None:
        self.turn += 1

    def _hold(self, owner: nn.Module, place: int, name: str) -> None:
        for parameter_name, parameter in owner.named_parameters():
            if not _finite(parameter):
                self._saw(Pass.BEFORE, place, f"{name} already: its {parameter_name}")
            what = f"gradient of {parameter_name} in {name}"
            parameter.register_hook(self._looker(Pass.WEIGHT_GRADIENT, place, what))
        for inner_name, inner in owner.named_modules():
            if inner_name:
                inner.register_forward_hook(lambda _, given, gave, n=inner_name: self._look_inside(n, given, gave))

    def _look_inside(self, name: str, given: tuple[Any, ...], gave: Tensor) -> None:
        if not self._inside and not _finite(gave):
            self._inside = f"out of {name}" if _finite(*given) else f"before {name}"

    def _watched(self, layer: Callable[..., Tensor], place: int, name: str) -> Callable[..., Tensor]:
        def run(*given: Tensor) -> Tensor:
            self._inside = ""
            gave = layer(*given)
            if not _finite(gave) and _finite(*given):
                largest = max((float(x.detach().abs().max()) for x in given if x.is_floating_point()), default=math.nan)
                detail = ", ".join(filter(None, (self._inside, f"from numbers up to {largest:.3g}")))
                self._saw(Pass.FORWARD, place, f"{name}, {detail}")
            for x in given:
                if x.requires_grad:
                    x.register_hook(self._looker(Pass.BACKWARD, -place, f"backward pass of {name}"))
            return gave

        return run

    def _looker(self, when: Pass, place: int, what: str) -> Callable[[Tensor], None]:
        turn = self.turn

        def look(gradient: Tensor) -> None:
            if not _finite(gradient):
                self._saw(when, place, what, turn=turn)

        return look

    def _saw(self, when: Pass, place: int, what: str, *, turn: int | None = None) -> None:
        turn = self.turn if turn is None else turn
        self.sightings.append(Sighting(when, turn, place, what, self.rank))


def _finite(*given: Any) -> bool:
    return all(bool(torch.isfinite(x).all()) for x in given if isinstance(x, Tensor) and x.is_floating_point())
