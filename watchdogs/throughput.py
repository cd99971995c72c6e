"""Slower than usual: one slow node slows them all down."""

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
from opsctl.watchdogs.new_lines import new_iterations

WINDOW = 200
"""Log lines that make the run's own median."""
RECENT = 10
"""Lines whose median is held against it: single slow steps, such as those after a save, say nothing."""
ENOUGH = 30
FAR = 3.0
"""So many deviations below the median it has to be as well: some systems are never steady."""
MUCH = 30.0
"""Per cent that are critical."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedObservation:
    train: str
    unit: str = ""
    rates: tuple[float, ...] = ()
    """Higher is faster, the newest last."""
    step: int = 0
    nodes: tuple[tuple[str, float], ...] = ()
    """Seconds for a step of each node, where they say so, the slowest first."""
    slower_percent: float


class Throughput:
    name: ClassVar[str] = "throughput"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: WatchedTrain) -> SpeedObservation:
        fields = context.memory.read(self.name, target.name)
        lines, position = new_iterations(target.run.main_log, fields)
        job = target.running
        size = job.node_count if job else fields.get("size", 0)
        unit, rates = _rates(fields if fields.get("size") in {0, size} else {}, lines)
        if target.is_over:  # nobody can do anything about it, and the next launch may be of something else
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
        )

    def judge(self, observation: SpeedObservation, now: datetime) -> list[Finding]:
        level, summary, slow = Level.OK, f"{observation.train}: too few steps to say", ""
        if len(observation.rates) >= ENOUGH:
            usual, lately, noise = _figures(observation.rates)
            less = 100 * (1 - lately / usual)
            summary = (
                f"{observation.train}: {lately:.4g} {observation.unit} at step {observation.step}, usually {usual:.4g}"
            )
            if less > observation.slower_percent and usual - lately > FAR * noise:
                level = Level.CRITICAL if less > MUCH else Level.WARNING
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
                remedy="" if level is Level.OK else "look for a slow node: opsctl health",
            )
        ]


def _rates(fields: dict[str, Any], lines: Sequence[Iteration]) -> tuple[str, list[float]]:
    """The window with these lines; a new one where the trainer says it in another unit now."""
    unit, rates = str(fields.get("unit", "")), [float(each) for each in fields.get("rates", [])]
    for line in lines:
        named = _rate(line)
        if named is None:
            continue
        if named[0] != unit:
            unit, rates = named[0], []
        rates.append(named[1])
    return unit, rates[-WINDOW:]


def _rate(line: Iteration) -> tuple[str, float] | None:
    """TFLOPs if it says them: they alone do not change when the batch grows."""
    if line.tflops:
        return "TFLOPs", line.tflops
    if line.samples_per_s:
        return "samples/s", line.samples_per_s
    if line.step_s and line.step_s > 0:
        return ("samples/s", line.global_batch / line.step_s) if line.global_batch else ("steps/s", 1 / line.step_s)
    return None


def _figures(rates: Sequence[float]) -> tuple[float, float, float]:
    """What is usual, what it is lately, and how far it usually is from the median of a few lines."""
    before = rates[:-RECENT]
    usual = median(before)
    deviation = 1.4826 * median(abs(rate - usual) for rate in before)
    return usual, median(rates[-RECENT:]), 1.25 * deviation / RECENT**0.5


def _nodes(thing: WatchedTrain) -> tuple[tuple[str, float], ...]:
    attempt = thing.attempt
    beats = [read_heartbeat(path) for path in thing.run.heartbeat.glob("*-*.json")] if attempt else []
    known = {
        heartbeat.node: heartbeat.step_s
        for heartbeat in beats
        if heartbeat and attempt and heartbeat.attempt == attempt.name and heartbeat.step_s
    }
    return tuple(sorted(known.items(), key=lambda pair: -pair[1]))


def _slowest(nodes: Sequence[tuple[str, float]]) -> str:
    """The slowest node, if it is slower than the others are among themselves."""
    if len(nodes) < 2 or nodes[0][1] < 1.02 * nodes[1][1]:
        return ""
    return f"{nodes[0][0]} is the slowest: {nodes[0][1]:.3g} s a step, the next {nodes[1][1]:.3g} s"
