"""The loss: spikes, slow recoveries, divergence, permanent rises, NaN, steps that are skipped or state no loss.

For every trainer that logs its loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.base.model import Finding, Level
from opsctl.watchdogs import step_health
from opsctl.watchdogs.accepted_levels import read_acceptance
from opsctl.watchdogs.context import WatchContext, WatchedTrain
from opsctl.watchdogs.loss_curve import LossShape, LossState, PassedIncident, advance, shape
from opsctl.watchdogs.loss_level import accept_level
from opsctl.watchdogs.new_lines import new_iterations, why_idle
from opsctl.watchdogs.step_health import StepHealth, find_problems

CRITICAL_RISE = 0.2
"""A permanent rise by this share of the level is critical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossObservation:
    train: str
    curve: LossState
    steps: StepHealth = field(default_factory=StepHealth)
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
        steps = step_health.advance(StepHealth.from_json(fields.get("steps")), lines)
        if "curve" not in fields:  # what passed before the first cycle is no news
            curve, steps = replace(curve, passed=()), replace(steps, has_jumped=False)
        accepted = read_acceptance(context.memory, f"{self.name}/{target.name}")
        if accepted != fields.get("accepted", ""):
            curve = replace(curve, long_level=accept_level(curve.long_level))
        context.memory.write(
            self.name,
            target.name,
            {**position, "curve": curve.to_json(), "steps": steps.to_json(), "accepted": accepted},
        )
        return LossObservation(train=target.name, curve=curve, steps=steps, idle=why_idle(target))

    def judge(self, observation: LossObservation, now: datetime) -> list[Finding]:
        loss_shape = shape(observation.curve)
        level, describe, remedy = SHAPES[loss_shape]
        curve, key = observation.curve, f"{self.name}/{observation.train}"
        if curve.loss is None:
            level, describe, remedy = _no_loss(observation.idle)
        if loss_shape is LossShape.SETTLED:
            level = Level.CRITICAL if curve.long_level.rise_share >= CRITICAL_RISE else Level.WARNING
            remedy = f"{remedy} opsctl alerts accept {key} --reason ..."
        is_passed = level is Level.OK and bool(curve.passed)
        if is_passed:
            level, describe, remedy = Level.WARNING, _passed, "check the data of these steps"
        finding = Finding(
            key=key,
            level=level,
            summary=f"{observation.train}: {describe(curve)}",
            train=observation.train,
            evidence=_evidence(curve),
            remedy=remedy,
            is_certain=is_passed,
        )
        return [finding, *_judge_steps(observation.steps, key, observation.train)]


def _judge_steps(steps: StepHealth, key: str, train: str) -> list[Finding]:
    """Return one finding about the optimizer's steps, none for a log that states nothing about them."""
    if not steps.is_known:
        return []
    problems = find_problems(steps)
    level, summary = problems[0] if problems else (Level.OK, "steps are made")
    remedy = "opsctl logs; lower the learning rate or roll back to an earlier checkpoint" if problems else ""
    return [
        Finding(
            key=f"{key}/steps",
            level=level,
            summary=f"{train}: {summary}, at step {steps.step}",
            train=train,
            evidence=tuple(text for _, text in problems[1:]),
            remedy=remedy,
            is_certain=level is Level.WARNING and steps.has_jumped,
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
    return f"{_raised(curve)}, and it keeps rising"


def _raised(curve: LossState) -> str:
    level = curve.long_level
    before = f"{level.before:.4g}" if level.before is not None else "?"
    return f"{_now(curve)}, {100 * level.rise_share:.0f} % above {before}, the level before step {level.rise_step}"


def _passed(curve: LossState) -> str:
    return f"{_now(curve)}; " + "; ".join(map(_describe_passed, curve.passed))


def _describe_passed(incident: PassedIncident) -> str:
    if incident.shape is LossShape.NAN:
        return f"no finite loss for {incident.lines} log lines before step {incident.step}"
    rise = f"{incident.level:.4g} to {incident.peak:.4g}"
    return f"spiked from {rise} at step {incident.step}, and was back after {incident.lines} log lines"


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
        lambda curve: f"{_raised(curve)}, and it stays there",
        "has the data or the mixture changed? If the level is right:",
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
