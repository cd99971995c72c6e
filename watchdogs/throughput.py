"""Throughput below the usual: one slow node slows the whole train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any, ClassVar, Literal

from opsctl.model import Finding, Level
from opsctl.telemetry.progress.iteration_lines import Iteration
from opsctl.trainer.contract import read_heartbeat
from opsctl.watchdogs.context import WatchContext, WatchedTrain
from opsctl.watchdogs.new_lines import new_iterations, why_idle

WINDOW = 200
"""Number of log lines in the usual median."""
RECENT = 10
"""Number of newest lines in the current median: single slow steps, such as after a save, do not count."""
MIN_LINES = 30
MIN_DEVIATIONS = 3.0
"""The drop must also exceed this many deviations: some systems are never steady."""
CRITICAL_PERCENT = 30.0
"""A drop of more is critical."""

REMEDIES = {
    Level.OK: "",
    Level.UNKNOWN: "if the trainer logs its steps in a form of its own: [progress] pattern in TRAIN.toml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedObservation:
    train: str
    unit: str = ""
    rates: tuple[float, ...] = ()
    """Higher is faster, the newest last."""
    step: int = 0
    nodes: tuple[tuple[str, float], ...] = ()
    """Seconds per step of each node with a heartbeat, the slowest first."""
    slower_percent: float
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
        size = job.node_count if job else fields.get("size", 0)
        unit, rates = _rates(fields if fields.get("size") in {0, size} else {}, lines)
        if target.is_over:  # the next launch may be a different model
            rates = []
        step = lines[-1].step if lines else int(fields.get("step", 0))
        context.memory.write(
            self.name, target.name, {**position, "size": size, "unit": unit, "rates": rates, "step": step}
        )
        return SpeedObservation(
            train=target.name,
            unit=unit,
            rates=tuple(rates),
            step=step,
            nodes=_nodes(target),
            slower_percent=target.config.watch.slower_percent,
            idle=why_idle(target),
        )

    def judge(self, observation: SpeedObservation, now: datetime) -> list[Finding]:
        level, summary, slow = Level.OK, f"{observation.train}: too few steps to judge", ""
        if not observation.rates and observation.idle:
            summary = f"{observation.train}: no step times: {observation.idle}"
        elif not observation.rates:
            level, summary = Level.UNKNOWN, f"{observation.train}: no step times in the log"
        if len(observation.rates) >= MIN_LINES:
            usual, lately, noise = _figures(observation.rates)
            less = 100 * (1 - lately / usual)
            summary = (
                f"{observation.train}: {lately:.4g} {observation.unit} at step {observation.step}, usually {usual:.4g}"
            )
            if less > observation.slower_percent and usual - lately > MIN_DEVIATIONS * noise:
                level = Level.CRITICAL if less > CRITICAL_PERCENT else Level.WARNING
                slow = _slowest(observation.nodes)
                summary += f": {less:.0f} % slower" + (f"; {slow}" if slow else "")
        return [
            Finding(
                key=f"{self.name}/{observation.train}",
                level=level,
                summary=summary,
                train=observation.train,
                node=observation.nodes[0][0] if slow else "",
                evidence=tuple(f"{node}: {seconds:.3g} s a step" for node, seconds in observation.nodes[:8] if slow),
                remedy=REMEDIES.get(level, "find a slow node: opsctl health"),
            )
        ]


def _rates(fields: dict[str, Any], lines: Sequence[Iteration]) -> tuple[str, list[float]]:
    """Return unit and rates with the new lines; a change of the unit starts a new window."""
    unit, rates = str(fields.get("unit", "")), [float(rate) for rate in fields.get("rates", [])]
    for line in lines:
        measured = _rate(line)
        if measured is None:
            continue
        if measured[0] != unit:
            unit, rates = measured[0], []
        rates.append(measured[1])
    return unit, rates[-WINDOW:]


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


def _figures(rates: Sequence[float]) -> tuple[float, float, float]:
    """Return the usual rate, the current rate, and the usual deviation of a median of RECENT lines."""
    before = rates[:-RECENT]
    usual = median(before)
    deviation = 1.4826 * median(abs(rate - usual) for rate in before)
    return usual, median(rates[-RECENT:]), 1.25 * deviation / RECENT**0.5


def _nodes(train: WatchedTrain) -> tuple[tuple[str, float], ...]:
    attempt = train.attempt
    heartbeats = [read_heartbeat(path) for path in train.run.heartbeat.glob("*-*.json")] if attempt else []
    known = {
        heartbeat.node: heartbeat.step_s
        for heartbeat in heartbeats
        if heartbeat and attempt and heartbeat.attempt == attempt.name and heartbeat.step_s
    }
    return tuple(sorted(known.items(), key=lambda pair: -pair[1]))


def _slowest(nodes: Sequence[tuple[str, float]]) -> str:
    """Return a sentence about the slowest node, empty if no node stands out."""
    if len(nodes) < 2 or nodes[0][1] < 1.02 * nodes[1][1]:
        return ""
    return f"{nodes[0][0]} is the slowest: {nodes[0][1]:.3g} s a step, the next {nodes[1][1]:.3g} s"
