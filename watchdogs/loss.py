"""The loss: spikes, slow recoveries, divergence, permanent rises, NaN, steps that are skipped or state no loss.

For every trainer that logs its loss.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.base.findings import Finding, Severity
from opsctl.base.statements import NO_REMEDY, Statement, Value, advise, state
from opsctl.telemetry.progress.log_formats import EPOCH_PARTS
from opsctl.watchdogs import step_health
from opsctl.watchdogs.context import WatchContext, WatchedTrain, read_acceptance
from opsctl.watchdogs.loss_curve import LossShape, LossState, PassedIncident, advance, find_spike_begin, shape
from opsctl.watchdogs.loss_level import accept_level
from opsctl.watchdogs.new_lines import LogPlace, new_iterations, why_idle
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
    counts_epochs: bool = False
    """Whether the trainer logs epochs and no steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossMemory:
    log: LogPlace | None = None
    curve: LossState | None = None
    steps: StepHealth | None = None
    accepted: str = ""
    """When a person last accepted the level."""


class Loss:
    name: ClassVar[str] = "loss"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: WatchedTrain) -> LossObservation:
        before = context.memory.recall(LossMemory, self.name, target.name)
        lines, place = new_iterations(target.run.main_log, before.log, target.config.progress.pattern, or_epochs=True)
        curve = advance(before.curve or LossState(), lines)
        steps = step_health.advance(before.steps or StepHealth(), lines)
        if before.curve is None:  # what passed before the first cycle is no news
            curve, steps = replace(curve, passed=()), replace(steps, has_jumped=False)
        accepted = read_acceptance(context.memory, f"{self.name}/{target.name}")
        if accepted != before.accepted:
            curve = replace(curve, long_level=accept_level(curve.long_level))
        remembered = LossMemory(log=place, curve=curve, steps=steps, accepted=accepted)
        context.memory.remember(self.name, target.name, remembered)
        idle, counts_epochs = why_idle(target), place.unit == "epoch"
        return LossObservation(train=target.name, curve=curve, steps=steps, idle=idle, counts_epochs=counts_epochs)

    def judge(self, observation: LossObservation, now: datetime) -> list[Finding]:
        curve, train, key = observation.curve, observation.train, f"{self.name}/{observation.train}"
        loss_shape = shape(curve)
        severity, kind, remedy = SHAPES.get(loss_shape, (Severity.OK, "now", ""))
        facts, parts = _list_facts(curve, loss_shape), []
        if curve.loss is None:
            # Without a loss nothing is known if the train should log one.
            severity, kind, remedy = (
                (Severity.OK, "idle", "") if observation.idle else (Severity.UNKNOWN, "not_logged", "log_loss")
            )
            facts = {"why": observation.idle}
        elif loss_shape is LossShape.DIVERGING and curve.spike_step is not None:
            kind = "spike_rises"
        elif loss_shape is LossShape.SETTLED and curve.long_level.rise_share >= CRITICAL_RISE:
            severity, remedy = Severity.CRITICAL, "settled_high"
        is_passed = severity is Severity.OK and bool(curve.passed)
        if is_passed:
            severity, kind, remedy = Severity.WARNING, "passed", "check_data"
            parts = [_describe_passed(incident) for incident in curve.passed]
            facts["since_step"] = min(incident.since for incident in curve.passed)
        accept = [("opsctl", "alerts", "accept", key, "--reason", "...")] if loss_shape is LossShape.SETTLED else []
        finding = Finding(
            key=key,
            severity=severity,
            says=state(f"loss.{kind}", *parts, train=train, **facts),
            train=train,
            since_step=_find_begin(curve, loss_shape, is_passed=is_passed),
            wants_rollback=loss_shape in ROLL_BACK or remedy == "settled_high",
            details=_list_details(curve),
            fix=advise(f"remedy.{remedy}", *accept) if remedy else NO_REMEDY,
            is_certain=is_passed,
        )
        findings = [finding, *_judge_steps(observation.steps, key, train)]
        return list(map(_count_epochs, findings)) if observation.counts_epochs else findings


def _count_epochs(finding: Finding) -> Finding:
    """Return a finding whose steps are parts of epochs with epochs in their place: no checkpoint has such a step."""
    details = tuple(map(_name_epochs, finding.details))
    return replace(finding, since_step=None, says=_name_epochs(finding.says), details=details)


def _name_epochs(statement: Statement) -> Statement:
    facts = dict(statement.facts)
    for name in ("step", "since_step"):
        if isinstance(value := facts.pop(name, None), int):
            facts[name.replace("step", "epoch")] = value / EPOCH_PARTS
    return replace(statement, facts=facts, parts=tuple(map(_name_epochs, statement.parts)))


def _judge_steps(steps: StepHealth, key: str, train: str) -> list[Finding]:
    """Return one finding about the optimizer's steps, none for a log that states nothing about them."""
    if not steps.is_known:
        return []
    problems = find_problems(steps)
    severity = problems[0].severity if problems else Severity.OK
    parts = [problem.says for problem in problems[:1]]
    says = state("steps.trouble" if parts else "steps.made", *parts, train=train, step=steps.step)
    begins = [problem.since_step for problem in problems if problem.since_step is not None]
    return [
        Finding(
            key=f"{key}/steps",
            severity=severity,
            says=says,
            train=train,
            since_step=min(begins, default=None),
            wants_rollback=bool(problems),
            details=tuple(problem.says for problem in problems[1:]),
            fix=advise("remedy.steps", ("opsctl", "logs", train)) if problems else NO_REMEDY,
            is_certain=severity is Severity.WARNING and steps.has_jumped,
        )
    ]


def _list_facts(curve: LossState, loss_shape: LossShape) -> dict[str, Value]:
    facts: dict[str, Value] = {"loss": curve.loss, "step": curve.step}
    if loss_shape in {LossShape.NAN, LossShape.DEAD}:
        lines = curve.bad if loss_shape is LossShape.NAN else curve.no_gradient
        return {"step": curve.step, "lines": lines, **({} if loss_shape is LossShape.NAN else {"loss": curve.loss})}
    if curve.spike_step is not None:
        return {**facts, "level": curve.level, "peak": curve.peak, "since_step": curve.spike_step}
    raised = curve.long_level
    if raised.is_raised:
        rise = {"rise_percent": 100 * raised.rise_share, "before": raised.before, "since_step": raised.rise_step}
        return {**facts, **rise}
    return facts


def _find_begin(curve: LossState, loss_shape: LossShape, *, is_passed: bool) -> int | None:
    """Return the first step that may be in trouble; None if there is no trouble or its begin is unknown."""
    if is_passed:
        return min(incident.since for incident in curve.passed)
    if loss_shape is LossShape.NAN:
        return curve.bad_since
    if loss_shape is LossShape.DEAD:
        return curve.no_gradient_since
    begins = [find_spike_begin(curve), curve.long_level.rise_step if curve.long_level.is_raised else None]
    return min((step for step in begins if step is not None), default=None)


def _list_details(curve: LossState) -> tuple[Statement, ...]:
    details = [state("loss.point", step=step, loss=loss) for step, loss in curve.points[-3:]]
    if curve.spike_step is not None:
        losses = ", ".join(f"{loss:.4g}" for loss in curve.recent[-5:])
        details.append(state("loss.since", step=curve.spike_step, losses=losses))
    if curve.grad_norm is not None and curve.has_gradient:
        details.append(state("loss.gradient", norm=curve.grad_norm, step=curve.step))
    return tuple(details)


def _describe_passed(incident: PassedIncident) -> Statement:
    if incident.shape is LossShape.NAN:
        return state("loss.passed_nan", lines=incident.lines, step=incident.step)
    figures = {"level": incident.level, "peak": incident.peak}
    return state("loss.passed_spike", lines=incident.lines, step=incident.step, **figures)


ROLL_BACK = frozenset({LossShape.SLOW, LossShape.DIVERGING, LossShape.NAN})
"""Shapes after which the training is repeated from an earlier checkpoint."""
SHAPES: dict[LossShape, tuple[Severity, str, str]] = {
    LossShape.SPIKE: (Severity.WARNING, "spike", "wait"),
    LossShape.SLOW: (Severity.CRITICAL, "slow", "roll_back"),
    LossShape.DIVERGING: (Severity.CRITICAL, "rises", "roll_back"),
    LossShape.SETTLED: (Severity.WARNING, "settled", "settled"),
    LossShape.NAN: (Severity.CRITICAL, "nan", "roll_back"),
    LossShape.DEAD: (Severity.CRITICAL, "dead", "dead"),
    LossShape.STUCK: (Severity.CRITICAL, "stuck", "stuck"),
}
"""Severity, sentence and remedy of each shape in trouble."""
