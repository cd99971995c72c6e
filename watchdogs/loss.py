"""The loss: spikes, slow recoveries, divergence, NaN, a gradient that is gone. Of any trainer with Megatron's lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.model import Finding, Level
from opsctl.watchdogs.context import Scene, Watched
from opsctl.watchdogs.loss_curve import Curve, Shape, advance, shape
from opsctl.watchdogs.new_lines import new_iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    train: str
    curve: Curve


class Loss:
    name: ClassVar[str] = "loss"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = False

    def probe(self, scene: Scene, thing: Watched) -> Losses:
        kept = scene.memory.read(self.name, thing.name)
        lines, position = new_iterations(thing.run.main_log, kept)
        curve = advance(Curve.from_json(kept.get("curve")), lines)
        scene.memory.write(self.name, thing.name, {**position, "curve": curve.to_json()})
        return Losses(train=thing.name, curve=curve)

    def judge(self, seen: Losses, now: datetime) -> list[Finding]:
        found = shape(seen.curve)
        level, say, remedy = SHAPES[found]
        summary = f"{seen.train}: {say(seen.curve)}"
        return [
            Finding(
                key=f"{self.name}/{seen.train}", level=level, summary=summary, train=seen.train,
                evidence=_evidence(seen.curve), remedy=remedy,
            )
        ]  # fmt: skip


def _evidence(curve: Curve) -> tuple[str, ...]:
    lines = [f"step {step}: {loss:.4g}" for step, loss in curve.points[-3:]]
    if curve.spike_step is not None:
        lines += [f"since step {curve.spike_step}: " + ", ".join(f"{loss:.4g}" for loss in curve.recent[-5:])]
    if curve.grad_norm is not None and curve.has_gradient:
        lines.append(f"grad norm {curve.grad_norm:.4g} at step {curve.step}")
    return tuple(lines)


def _now(curve: Curve) -> str:
    return f"loss {curve.loss:.4g} at step {curve.step}" if curve.loss is not None else "no loss yet"


def _spike(curve: Curve) -> str:
    level = f"{curve.level:.4g}" if curve.level is not None else "?"
    return f"{_now(curve)}, spiked from {level} to {curve.peak:.4g} at step {curve.spike_step}"


def _diverges(curve: Curve) -> str:
    if curve.spike_step is not None:
        return f"{_spike(curve)} and rises again"
    return f"{_now(curve)}, diverging: it was {curve.low:.4g} at step {curve.low_step}"


_ROLL_BACK = "look at the data of these steps; roll back to a checkpoint before them, and skip them"
SHAPES: dict[Shape, tuple[Level, Callable[[Curve], str], str]] = {
    Shape.LEARNING: (Level.OK, _now, ""),
    Shape.CALM: (Level.OK, _now, ""),
    Shape.SPIKE: (Level.WARNING, _spike, "wait: most spikes are over within some tens of steps"),
    Shape.SLOW: (Level.CRITICAL, lambda curve: f"{_spike(curve)}, and it recovers slowly or not at all", _ROLL_BACK),
    Shape.DIVERGING: (Level.CRITICAL, _diverges, _ROLL_BACK),
    Shape.SETTLED: (
        Level.WARNING,
        lambda curve: f"{_now(curve)}, at another level than before ({curve.before:.4g}), and it stays there",
        "was data repeated before, or has the mixture changed?",
    ),
    Shape.NAN: (
        Level.CRITICAL,
        lambda curve: f"no finite loss for {curve.bad} log line{'s' * (curve.bad != 1)}, at step {curve.step}",
        _ROLL_BACK,
    ),
    Shape.DEAD: (
        Level.CRITICAL,
        lambda curve: f"{_now(curve)}, and the gradient norm has been zero for {curve.no_gradient} lines",
        "nothing is learnt: has the loss scale collapsed, or is the data empty?",
    ),
}
"""How bad each shape is, how to say it, and what to do."""
