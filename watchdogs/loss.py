"""The loss: spikes, slow recoveries, divergence, NaN, zero gradients. For every trainer that logs its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.model import Finding, Level
from opsctl.watchdogs.context import WatchContext, WatchedTrain
from opsctl.watchdogs.loss_curve import LossShape, LossState, advance, shape
from opsctl.watchdogs.new_lines import new_iterations, why_idle


@dataclass(frozen=True, slots=True, kw_only=True)
class LossObservation:
    train: str
    curve: LossState
    idle: str = ""
    """Why no loss is expected; empty if the train should log its loss."""


class Loss:
    name: ClassVar[str] = "loss"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: WatchedTrain) -> LossObservation:
        fields = context.memory.read(self.name, target.name)
        lines, position = new_iterations(target.run.main_log, fields, target.config.progress.pattern)
        curve = advance(LossState.from_json(fields.get("curve")), lines)
        context.memory.write(self.name, target.name, {**position, "curve": curve.to_json()})
        return LossObservation(train=target.name, curve=curve, idle=why_idle(target))

    def judge(self, observation: LossObservation, now: datetime) -> list[Finding]:
        loss_shape = shape(observation.curve)
        level, describe, remedy = SHAPES[loss_shape]
        if observation.curve.loss is None:
            level, describe, remedy = _no_loss(observation.idle)
        summary = f"{observation.train}: {describe(observation.curve)}"
        return [
            Finding(
                key=f"{self.name}/{observation.train}",
                level=level,
                summary=summary,
                train=observation.train,
                evidence=_evidence(observation.curve),
                remedy=remedy,
            )
        ]


def _evidence(curve: LossState) -> tuple[str, ...]:
    lines = [f"step {step}: {loss:.4g}" for step, loss in curve.points[-3:]]
    if curve.spike_step is not None:
        lines += [f"since step {curve.spike_step}: " + ", ".join(f"{loss:.4g}" for loss in curve.recent[-5:])]
    if curve.grad_norm is not None and curve.has_gradient:
        lines.append(f"grad norm {curve.grad_norm:.4g} at step {curve.step}")
    return tuple(lines)


def _now(curve: LossState) -> str:
    return f"loss {curve.loss:.4g} at step {curve.step}" if curve.loss is not None else "no loss yet"


def _spike(curve: LossState) -> str:
    level = f"{curve.level:.4g}" if curve.level is not None else "?"
    return f"{_now(curve)}, spiked from {level} to {curve.peak:.4g} at step {curve.spike_step}"


def _diverges(curve: LossState) -> str:
    if curve.spike_step is not None:
        return f"{_spike(curve)} and rises again"
    return f"{_now(curve)}, diverging: it was {curve.low:.4g} at step {curve.low_step}"


_ROLL_BACK = "check the data of these steps; roll back to an earlier checkpoint and skip the steps"
SHAPES: dict[LossShape, tuple[Level, Callable[[LossState], str], str]] = {
    LossShape.LEARNING: (Level.OK, _now, ""),
    LossShape.CALM: (Level.OK, _now, ""),
    LossShape.SPIKE: (Level.WARNING, _spike, "wait: most spikes are over within some tens of steps"),
    LossShape.SLOW: (
        Level.CRITICAL,
        lambda curve: f"{_spike(curve)}, and it recovers slowly or not at all",
        _ROLL_BACK,
    ),
    LossShape.DIVERGING: (Level.CRITICAL, _diverges, _ROLL_BACK),
    LossShape.SETTLED: (
        Level.WARNING,
        lambda curve: f"{_now(curve)}, at another level than before ({curve.before:.4g}), and it stays there",
        "was data repeated before, or has the mixture changed?",
    ),
    LossShape.NAN: (
        Level.CRITICAL,
        lambda curve: f"no finite loss for {curve.bad} log line{'s' * (curve.bad != 1)}, at step {curve.step}",
        _ROLL_BACK,
    ),
    LossShape.DEAD: (
        Level.CRITICAL,
        lambda curve: f"{_now(curve)}, and the gradient norm has been zero for {curve.no_gradient} lines",
        "the model does not learn: has the loss scale collapsed, or is the data empty?",
    ),
}
"""Severity, description and remedy of each shape."""


def _no_loss(idle: str) -> tuple[Level, Callable[[LossState], str], str]:
    """Return what is known without a loss: nothing, if the train should log one."""
    if idle:
        return Level.OK, lambda _: f"no loss: {idle}", ""
    remedy = "if the trainer logs its loss in a form of its own: [progress] pattern in TRAIN.toml"
    return Level.UNKNOWN, lambda _: "no loss in the log", remedy
