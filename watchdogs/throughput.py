"""Throughput below the usual: one slow node slows the whole train.

The baseline is the highest median of a window of lines. While the run is slow, the window stands still: a lasting fall
never becomes the new normal. Every line counts, however many lie between two watch cycles.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import ClassVar, Literal

from opsctl.base.findings import Finding, Severity
from opsctl.base.statements import NO_REMEDY, advise, state
from opsctl.settings.loader import TrainSettings
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.trainer.contract import read_heartbeat
from opsctl.watchdogs.context import WatchContext, WatchedTrain, read_acceptance
from opsctl.watchdogs.new_lines import LogPlace, new_iterations, why_idle

MAX_BASELINES = 8
"""Configurations whose usual speed is remembered."""
WINDOW = 200
"""Number of log lines in the usual median."""
RECENT = 10
"""Number of newest lines in the current median: single slow steps, such as after a save, do not count."""
MIN_WINDOW = 20
"""Fewer lines define no usual speed."""
STEADY_WINDOW = 100
"""Lines of which the median may raise the baseline for good: a median of fewer lines is often high by chance."""
MIN_DEVIATIONS = 3.0
"""The drop must also exceed this many deviations: some systems are never steady."""
CRITICAL_PERCENT = 30.0
"""A drop of more is critical."""
PAUSE_RATIO, MAX_PAUSE_LINES = 5.0, 2
"""So few lines in a row, so many times slower, are a pause: a hang that ended, a save, an evaluation."""
RECOVERY_LINES, RECOVERY_GROWTH = 4, 1.01
"""The rates after a pause, where the trainer logs a running mean, grow by this factor in every line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedState:
    """The remembered rates of one configuration. Higher is faster."""

    window: tuple[float, ...] = ()
    """Rates at the usual speed, the newest last."""
    recent: tuple[float, ...] = ()
    """The newest rates."""
    best: float = 0.0
    """The highest median of a full window."""
    pause_lines: int = 0
    is_slow: bool = False

    @property
    def is_known(self) -> bool:
        """Whether there are enough lines to judge."""
        return len(self.window) >= MIN_WINDOW and len(self.recent) == RECENT

    @property
    def usual(self) -> float:
        return max(self.best, median(self.window))

    @property
    def current(self) -> float:
        return median(self.recent)

    @property
    def noise(self) -> float:
        """The usual deviation of a median of RECENT lines."""
        middle = median(self.window)
        deviation = 1.4826 * median(abs(rate - middle) for rate in self.window)
        return 1.25 * deviation / math.sqrt(RECENT)

    @property
    def less_percent(self) -> float:
        """The current drop."""
        return 100 * (1 - self.current / self.usual)

    @property
    def severity(self) -> Severity:
        if not (self.is_known and self.is_slow):
            return Severity.OK
        return Severity.CRITICAL if self.less_percent > CRITICAL_PERCENT else Severity.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedMemory:
    log: LogPlace | None = None
    size: int = 0
    """Nodes of the last task."""
    place: str = ""
    """Number of nodes and digest of the configuration."""
    unit: str = ""
    speeds: Mapping[str, SpeedState] = field(default_factory=dict)
    """By configuration and unit, the last used last."""
    step: int = 0
    accepted: str = ""
    """When a person last accepted the level."""


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
        before = context.memory.recall(SpeedMemory, self.name, target.name)
        lines, log = new_iterations(target.run.main_log, before.log, target.config.progress.pattern)
        job = target.running
        size = job.node_count if job else before.size
        place = f"{size} {_digest(target.config)}"
        accepted = read_acceptance(context.memory, f"{self.name}/{target.name}")
        speeds, unit = dict(before.speeds), before.unit
        if accepted != before.accepted:
            speeds.pop(f"{place} {unit}", None)
        # After a change of the configuration, the lines since the last cycle belong to both.
        counted = lines if before.place in {"", place} else []
        for unit, rate in filter(None, map(_rate, counted)):
            speed = speeds.pop(f"{place} {unit}", SpeedState())
            speeds[f"{place} {unit}"] = advance(speed, [rate], slower_percent=target.config.watch.slower_percent)
        step = lines[-1].step if lines else before.step
        newest = dict(list(speeds.items())[-MAX_BASELINES:])
        remembered = SpeedMemory(
            log=log, size=size, place=place, unit=unit, speeds=newest, step=step, accepted=accepted
        )
        context.memory.remember(self.name, target.name, remembered)
        speed = SpeedState() if target.is_over else speeds.get(f"{place} {unit}", SpeedState())
        return SpeedObservation(
            train=target.name, unit=unit, speed=speed, step=step, nodes=_nodes(target), idle=why_idle(target)
        )

    def judge(self, observation: SpeedObservation, now: datetime) -> list[Finding]:
        speed = observation.speed
        key, train, severity, fix = f"{self.name}/{observation.train}", observation.train, Severity.OK, NO_REMEDY
        says = state("speed.unjudged", train=train)
        nodes: tuple[tuple[str, float], ...] = ()
        if speed.is_known:
            severity, is_slow = speed.severity, speed.severity is not Severity.OK
            first = [seconds for _, seconds in observation.nodes[:2]]
            nodes = observation.nodes if is_slow and len(first) == 2 and first[0] >= 1.02 * first[1] else ()
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
            severity, says, fix = Severity.UNKNOWN, state("speed.not_logged", train=train), advise("remedy.log_steps")
        return [
            Finding(
                key=key,
                severity=severity,
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


def advance(state: SpeedState, rates: Iterable[float], *, slower_percent: float) -> SpeedState:
    for rate in rates:
        state = _advance_line(state, rate, slower_percent)
    return state


def _advance_line(state: SpeedState, rate: float, slower_percent: float) -> SpeedState:
    is_known = state.is_known
    if is_known and rate * PAUSE_RATIO < state.current:
        if state.pause_lines < MAX_PAUSE_LINES:
            return replace(state, pause_lines=state.pause_lines + 1)
    else:
        state = replace(state, pause_lines=0)
    recent, window = (*state.recent, rate), state.window
    if len(recent) > RECENT and not state.is_slow:
        window = (*window, recent[0])[-WINDOW:]
    state = replace(state, recent=recent[-RECENT:], window=window)
    if len(window) >= STEADY_WINDOW and not state.is_slow:
        state = replace(state, best=max(state.best, median(window)))
    return replace(state, is_slow=_is_slow(state, slower_percent)) if state.is_known else state


def _is_slow(state: SpeedState, slower_percent: float) -> bool:
    """Half the limits end the slowness, so that the state does not flap. A start-up has no steady speed yet."""
    if len(state.window) < STEADY_WINDOW:
        slower_percent = max(slower_percent, CRITICAL_PERCENT)
    share = 0.5 if state.is_slow else 1.0
    is_below = state.less_percent > share * slower_percent
    is_clear = state.usual - state.current > share * MIN_DEVIATIONS * state.noise
    return is_below and is_clear and (state.is_slow or not _is_recovering(state, slower_percent))


def _is_recovering(state: SpeedState, slower_percent: float) -> bool:
    """Return whether the newest rates come back: after a pause, a running mean does so over some twenty lines."""
    newest = state.recent[-RECOVERY_LINES:]
    if median(newest[1:]) >= state.usual * (1 - slower_percent / 100):
        return True
    return all(after >= RECOVERY_GROWTH * before for before, after in pairwise(newest))
