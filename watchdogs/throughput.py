"""Throughput below the usual: one slow node slows the whole train."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.base.findings import Finding, Level
from opsctl.base.statements import NO_REMEDY, advise, state
from opsctl.settings.loader import TrainSettings
from opsctl.telemetry.progress.iteration_lines import Iteration
from opsctl.trainer.contract import read_heartbeat
from opsctl.watchdogs.context import WatchContext, WatchedTrain, read_acceptance, recall, to_fields
from opsctl.watchdogs.new_lines import new_iterations, why_idle
from opsctl.watchdogs.speed_level import SpeedState, advance

MAX_BASELINES = 8
"""Configurations whose usual speed is remembered."""
Speeds = dict[str, SpeedState]
"""By configuration and unit, the last used last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedObservation:
    train: str
    unit: str = ""
    speed: SpeedState = field(default_factory=SpeedState)
    step: int = 0
    nodes: tuple[tuple[str, float], ...] = ()
    """Seconds per step of each node with a heartbeat, the slowest first."""
    idle: str = ""
    """Why no steps are expected; empty if the train should log steps."""


class Throughput:
    name: ClassVar[str] = "throughput"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: WatchedTrain) -> SpeedObservation:
        fields = context.memory.read(self.name, target.name)
        lines, position = new_iterations(target.run.main_log, fields, target.config.progress.pattern)
        job = target.running
        size = job.node_count if job else int(fields.get("size", 0))
        place = f"{size} {_digest(target.config)}"
        accepted = read_acceptance(context.memory, f"{self.name}/{target.name}")
        speeds, unit = recall(Speeds, fields.get("speeds")) or {}, str(fields.get("unit", ""))
        if accepted != fields.get("accepted", ""):
            speeds.pop(f"{place} {unit}", None)
        # After a change of the configuration, the lines since the last cycle belong to both.
        counted = lines if fields.get("place", place) == place else []
        for unit, rate in filter(None, map(_rate, counted)):
            speed = speeds.pop(f"{place} {unit}", SpeedState())
            speeds[f"{place} {unit}"] = advance(speed, [rate], slower_percent=target.config.watch.slower_percent)
        step = lines[-1].step if lines else int(fields.get("step", 0))
        stored = {key: to_fields(speed) for key, speed in list(speeds.items())[-MAX_BASELINES:]}
        remembered = {"size": size, "place": place, "unit": unit, "speeds": stored, "step": step, "accepted": accepted}
        context.memory.write(self.name, target.name, {**position, **remembered})
        speed = SpeedState() if target.is_over else speeds.get(f"{place} {unit}", SpeedState())
        return SpeedObservation(
            train=target.name, unit=unit, speed=speed, step=step, nodes=_nodes(target), idle=why_idle(target)
        )

    def judge(self, observation: SpeedObservation, now: datetime) -> list[Finding]:
        speed = observation.speed
        key, train, level, fix = f"{self.name}/{observation.train}", observation.train, Level.OK, NO_REMEDY
        says = state("speed.unjudged", train=train)
        nodes: tuple[tuple[str, float], ...] = ()
        if speed.is_known:
            level, is_slow = speed.level, speed.level is not Level.OK
            nodes = observation.nodes if is_slow and _stands_out(observation.nodes) else ()
            slowest = dict(zip(("slow_s", "next_s"), (seconds for _, seconds in nodes), strict=False))
            says = state(
                "speed.slow" if is_slow else "speed.known",
                train=train,
                rate=speed.current,
                unit=observation.unit,
                step=observation.step,
                usual=speed.usual,
                less_percent=speed.less_percent,
                slow_node=nodes[0][0] if nodes else "",
                **slowest,
            )
            accept = ("opsctl", "alerts", "accept", key, "--reason", "...")
            fix = advise("remedy.slow", ("opsctl", "health"), accept) if is_slow else NO_REMEDY
        elif not speed.recent and observation.idle:
            says = state("speed.idle", train=train, why=observation.idle)
        elif not speed.recent and not observation.unit:
            level, says, fix = Level.UNKNOWN, state("speed.not_logged", train=train), advise("remedy.log_steps")
        return [
            Finding(
                key=key,
                level=level,
                says=says,
                train=train,
                node=nodes[0][0] if nodes else "",
                details=tuple(state("speed.node", node=node, seconds=seconds) for node, seconds in nodes[:8]),
                fix=fix,
            )
        ]


def _digest(config: TrainSettings) -> str:
    """Return a short name of the configuration: another trainer or other settings have another usual speed."""
    parts = [config.command, config.trainer, config.environment, config.container, config.slurm.processes_per_node]
    return hashlib.sha256(repr([*parts, config.slurm.partition]).encode(errors="replace")).hexdigest()[:12]


def _rate(line: Iteration) -> tuple[str, float] | None:
    """Return unit and rate of a line. TFLOPs are preferred: a growing batch does not change TFLOPs."""
    if line.tflops:
        return "TFLOPs", line.tflops
    if line.tokens_per_s:
        return "tokens/s", line.tokens_per_s
    if line.samples_per_s:
        return "samples/s", line.samples_per_s
    if line.step_s and line.step_s > 0:
        return ("samples/s", line.global_batch / line.step_s) if line.global_batch else ("steps/s", 1 / line.step_s)
    return None


def _nodes(train: WatchedTrain) -> tuple[tuple[str, float], ...]:
    attempt = train.attempt
    heartbeats = [read_heartbeat(path) for path in train.run.heartbeat.glob("*-*.json")] if attempt else []
    known = {
        heartbeat.node: heartbeat.step_s
        for heartbeat in heartbeats
        if heartbeat and attempt and heartbeat.attempt == attempt.name and heartbeat.step_s
    }
    return tuple(sorted(known.items(), key=lambda pair: -pair[1]))


def _stands_out(nodes: Sequence[tuple[str, float]]) -> bool:
    """Return whether the first node is slower than the others."""
    return len(nodes) >= 2 and nodes[0][1] >= 1.02 * nodes[1][1]
