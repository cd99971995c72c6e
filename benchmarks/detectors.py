"""Detectors against faults on real curves: hits, delay and false alarms, with frequent and with rare looks.

python -P benchmarks/detectors.py             the test half, as published in docs/reference/watchdogs.md; some minutes
python -P benchmarks/detectors.py --tuning    the tuning half, by which the limits were chosen
python -P benchmarks/detectors.py --curves DIR    both halves of a folder of such files, split by the source

The curves are in tests/corpus/curves: logged figures of public trainings. Each is continued by its own figures: blocks
of the logged deviations from the trend, in a drawn order, on a level that falls slowly. Faults begin at drawn lines.
The curves of a folder are not continued: faults begin among lines 100 to 1000, where the loss falls fast, and anywhere.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from opsctl.base.findings import Severity
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.watchdogs import step_health, throughput
from opsctl.watchdogs.loss_curve import LossShape, LossState, advance, shape
from opsctl.watchdogs.step_health import StepHealth, find_problems
from opsctl.watchdogs.throughput import SpeedState

CORPUS = Path(__file__).parents[1] / "tests/corpus/curves"
TUNING = ("nanogpt-char", "gpt2-124m-llmc", "gpt2-124m-adamw")
TEST = ("baize-lora", "gpt2-jaip", "qwen2.5-1.5b-lora")
"""Of the curves in the order of the sha256 of their sources, every other one."""
STARTS = ("gpt2-124m-adamw-start",)
"""The first steps of a training, for false alarms only."""
SPEEDS = ("nanogpt-char-times",)
LOOKS = {"frequent": 5, "rare": 200}
"""Log lines between two looks."""
BLOCK_LINES = 10
CALM_LINES = 10_000
CASES = 12
FAULT_LINES = 600
"""A fault that is not noticed within this many lines is missed."""
FALL = 2e-5
"""Share by which the level of a continued curve falls in a line."""


def read_curve(name: str, folder: Path = CORPUS) -> list[float]:
    lines = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [int(word) / 1000 for line in lines if not line.startswith("#") for word in line.split()]


def find_trend(losses: Sequence[float], half: int = 25) -> list[float]:
    """Return the running median."""
    return [median(losses[max(0, at - half) : at + half + 1]) for at in range(len(losses))]


def continue_curve(losses: Sequence[float], lines: int, seed: int) -> list[float]:
    """Return the curve, continued to `lines` lines by blocks of its own deviations from the trend."""
    dice, trend = random.Random(seed), find_trend(losses)
    ratios = [loss / level for loss, level in zip(losses, trend, strict=True)][len(losses) // 4 :]
    level, curve = trend[-1], list(losses)
    while len(curve) < lines:
        start = dice.randrange(len(ratios) - BLOCK_LINES)
        for ratio in ratios[start : start + BLOCK_LINES]:
            level *= 1 - FALL
            curve.append(level * ratio)
    return curve[:lines]


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of the lines from the line `at` on."""

    name: str
    change: Callable[[list[Iteration], int], list[Iteration]]
    is_fault: bool = True
    """False for something harmless, of which every alarm is false."""
    lasts: bool = False
    """Whether the fault counts as noticed only if the last look still reports the fault."""


def scale(factor: Callable[[int], float]) -> Callable[[list[Iteration], int], list[Iteration]]:
    """Return a fault that multiplies the loss by a factor of the number of lines since its begin."""

    def change(lines: list[Iteration], at: int) -> list[Iteration]:
        changed = [
            Iteration(step=line.step, loss=(line.loss or 0) * factor(place), grad_norm=line.grad_norm)
            for place, line in enumerate(lines[at:])
        ]
        return lines[:at] + changed

    return change


def roll_back(lines: list[Iteration], at: int) -> list[Iteration]:
    return lines[:at] + lines[at - 900 :]


def not_a_number(lines: list[Iteration], at: int) -> list[Iteration]:
    bad = [Iteration(step=line.step, loss=math.nan, grad_norm=math.nan) for line in lines[at : at + 10]]
    return lines[:at] + bad + lines[at + 10 :]


def collapse(lines: list[Iteration], at: int) -> list[Iteration]:
    """All steps are skipped, and the loss scale is at its floor."""
    sound = [Iteration(step=line.step, loss=line.loss, loss_scale=65536.0, skipped=0) for line in lines[:at]]
    return sound + [Iteration(step=line.step, loss_scale=1.0, skipped=1) for line in lines[at:]]


def jump(lines: list[Iteration], at: int) -> list[Iteration]:
    line = Iteration(step=lines[at].step, loss=lines[at].loss, grad_norm=25 * 0.3)
    return [*lines[:at], line, *lines[at + 1 :]]


def stand_still(lines: list[Iteration], at: int) -> list[Iteration]:
    return lines[:at] + [Iteration(step=line.step, loss=lines[at].loss, grad_norm=0.3) for line in lines[at:]]


def shrink_batch(lines: list[Iteration], at: int) -> list[Iteration]:
    """A batch smaller by a quarter: the noise grows by 15 %."""
    losses = [line.loss or 0 for line in lines]
    changed = [
        Iteration(step=line.step, loss=level + 1.15 * (loss - level), grad_norm=line.grad_norm)
        for line, loss, level in zip(lines, losses, find_trend(losses), strict=True)
    ]
    return lines[:at] + changed[at:]


FAULTS = (
    Fault("a rise by 8 % for good", scale(lambda _: 1.08), lasts=True),
    Fault("a rise by 15 % for good", scale(lambda _: 1.15), lasts=True),
    Fault("a rise by 30 % for good", scale(lambda _: 1.3), lasts=True),
    Fault("a rise by 20 % in 400 lines", scale(lambda n: 1 + min(0.2, 0.0005 * n)), lasts=True),
    Fault("a rise by 8 % in 300 lines", scale(lambda n: 1 + min(0.08, 0.08 * n / 300)), lasts=True),
    Fault("a rise by 0.1 % a line", scale(lambda n: 1 + 0.001 * n), lasts=True),
    Fault("a loss of exactly 0 for good", scale(lambda _: 0.0), lasts=True),
    Fault("the same loss in every line", stand_still, lasts=True),
    Fault("twice the loss for 20 lines", scale(lambda n: 2 if n < 20 else 1)),
    Fault("a spike to twice the loss, back after 20 lines", scale(lambda n: 1 + math.exp(-n / 8))),
    Fault("no finite loss for 10 lines", not_a_number),
    Fault("all steps skipped, loss scale 1", collapse),
    Fault("a gradient norm of 25 times the usual one", jump),
    Fault("another mixture: 3 % above", scale(lambda _: 1.03), is_fault=False),
    Fault("a batch smaller by a quarter", shrink_batch, is_fault=False),
    Fault("a rollback by 900 lines", roll_back, is_fault=False),
)


def read_alarms(lines: Sequence[Iteration], every: int) -> tuple[list[int], bool]:
    """Return the numbers of lines read at which something begins to be reported, and whether the last look reports."""
    curve, steps, was_bad = LossState(), StepHealth(), False
    alarms = []
    for end in range(every, len(lines) + 1, every):
        curve = advance(curve, lines[end - every : end])
        steps = step_health.advance(steps, lines[end - every : end])
        is_calm = shape(curve) in {LossShape.CALM, LossShape.LEARNING} and not curve.passed
        is_bad = not is_calm or bool(find_problems(steps))
        if is_bad and not was_bad:
            alarms.append(end)
        was_bad = is_bad
    return alarms, was_bad


def to_lines(losses: Sequence[float]) -> list[Iteration]:
    return [Iteration(step=step, loss=loss, grad_norm=0.3) for step, loss in enumerate(losses, 1)]


def judge_fault(names: Sequence[str], fault: Fault) -> dict[str, tuple[int, list[int]]]:
    """Return for each kind of looks the number of cases, and the delays of those that are noticed."""
    dice, cases = random.Random(fault.name), 0
    delays: dict[str, list[int]] = {name: [] for name in LOOKS}
    back = 900 if fault.change is roll_back else 0
    for name in names:
        for case in range(CASES // len(names)):
            at = dice.randrange(500, 800) + back
            lines = fault.change(to_lines(continue_curve(read_curve(name), at + FAULT_LINES, seed=case)), at)
            cases += 1
            for looks, every in LOOKS.items():
                alarms, is_bad = read_alarms(lines, every)
                if is_bad or not fault.lasts:
                    delays[looks] += [end - at for end in alarms if end >= at][:1]
    return {looks: (cases, found) for looks, found in delays.items()}


def describe(cases: int, delays: Sequence[int], *, is_fault: bool) -> str:
    if not is_fault:
        return f"{len(delays)} false of {cases}"
    return f"{len(delays)} of {cases}; {median(delays):.0f} / {max(delays)}" if delays else f"0 of {cases}"


def rows(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for fault in FAULTS:
        judged = judge_fault(names, fault)
        yield fault.name, *(describe(*judged[looks], is_fault=fault.is_fault) for looks in LOOKS)
    yield from speed_rows()
    logged = [read_curve(name) for name in (*names, *STARTS)]
    yield f"false alarms in the {sum(map(len, logged)):,} logged lines", *count_alarms(logged)
    for name in names:
        continued = continue_curve(read_curve(name), CALM_LINES, seed=100)
        yield f"false alarms in {CALM_LINES:,} lines continued from {name}", *count_alarms([continued])


def count_alarms(curves: Sequence[Sequence[float]]) -> list[str]:
    """Return for each kind of looks the number of alarms in calm curves."""
    return [str(sum(len(read_alarms(to_lines(curve), every)[0]) for curve in curves)) for every in LOOKS.values()]


def speed_rows() -> Iterator[tuple[str, ...]]:
    """Yield the rows of the throughput detector: the logged times of steps, some of which hold an evaluation."""
    times = [seconds for seconds in read_curve(SPEEDS[0]) if seconds < 10]
    for fault, factor in (
        ("10 % slower for good", 1 / 0.9),
        ("38 % slower for good", 1 / 0.62),
        ("an hour's pause", 1.0),
    ):
        texts = []
        for every in LOOKS.values():
            dice, delays = random.Random(fault), []
            for case in range(CASES):
                at = dice.randrange(500, 800)
                series = continue_curve(times, at + FAULT_LINES, seed=case)
                series = [*series[:at], *(seconds * factor for seconds in series[at:])]
                if factor == 1:
                    series[at] = 3600.0
                delays += [found for found in [find_slow(series, at, every)] if found is not None]
            texts.append(describe(CASES, delays, is_fault=factor != 1))
        yield f"steps: {fault}", *texts
    calm = continue_curve(read_curve(SPEEDS[0]), CALM_LINES, seed=100)
    slow = [find_slow(calm, 0, every) for every in LOOKS.values()]
    yield f"steps: false alarms in {CALM_LINES:,} lines, with evaluations", *(str(int(at is not None)) for at in slow)


def find_slow(times: Sequence[float], at: int, every: int) -> int | None:
    """Return the delay in lines until steps are reported as slow; None if they never are."""
    state = SpeedState()
    for end in range(every, len(times) + 1, every):
        rates = [1 / seconds for seconds in times[end - every : end]]
        state = throughput.advance(state, rates, slower_percent=5)
        if end >= at and state.severity is not Severity.OK:
            return end - at
    return None


FAST_LINES = range(100, 1000)
"""Where the loss still falls fast."""
HALVES = ("tuning", "test")


@dataclass(frozen=True, slots=True)
class PublicCurve:
    """A logged curve, or the logged milliseconds of its steps."""

    name: str
    source: str
    figures: tuple[float, ...]

    @property
    def half(self) -> str:
        """The half follows from the source alone, so that nobody can choose it after a look at the curve."""
        return HALVES[int(hashlib.sha256(self.source.encode()).hexdigest(), 16) % 2]

    @property
    def is_of_times(self) -> bool:
        return self.name.endswith("-times")


def read_folder(folder: Path) -> list[PublicCurve]:
    curves = []
    for path in sorted(folder.glob("*.txt")):
        source = path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# source: ").split(" ")[0]
        curves.append(PublicCurve(path.stem, source, tuple(read_curve(path.stem, folder))))
    return curves


def public_rows(curves: Sequence[PublicCurve]) -> Iterator[tuple[str, ...]]:
    """Yield a row for every fault: the cases that are noticed in each half, among the fast lines and anywhere."""
    every = LOOKS["frequent"]
    losses = [curve for curve in curves if not curve.is_of_times]
    alarms = {curve.name: read_alarms(to_lines(curve.figures), every)[0] for curve in losses}
    long = [curve for curve in losses if len(curve.figures) > FAST_LINES.start + FAULT_LINES]
    calm = [curve for curve in long if not alarms[curve.name]]
    for half in HALVES:
        of_half = [curve for curve in losses if curve.half == half]
        lines = sum(len(curve.figures) for curve in of_half)
        loud = ", ".join(f"{curve.name} {len(alarms[curve.name])}" for curve in of_half if alarms[curve.name])
        sources = len({curve.source for curve in of_half})
        yield (
            f"{half}: {len(of_half)} curves of {sources} sources, {lines:,} lines; alarms: {loud or 'none'}",
            *[""] * 4,
        )
    for fault in FAULTS:
        if fault.change in {roll_back, collapse, jump}:
            continue
        cells = [judge_public(calm, fault, half, is_fast=is_fast) for half in HALVES for is_fast in (True, False)]
        yield fault.name, *cells
    for half in HALVES:
        timed = [curve for curve in curves if curve.is_of_times and curve.half == half]
        early = sum(find_slow(curve.figures[:100], 0, 1) is not None for curve in timed)
        yield f"steps, {half}: alarms in the first 100 lines of {len(timed)} logs: {early}", *[""] * 4


def judge_public(curves: Sequence[PublicCurve], fault: Fault, half: str, *, is_fast: bool) -> str:
    dice, delays, cases = random.Random(f"{fault.name} {is_fast}"), [], 0
    for curve in curves:
        if curve.half == half:
            last = len(curve.figures) - FAULT_LINES
            at = dice.randrange(FAST_LINES.start, min(last, FAST_LINES.stop) if is_fast else last)
            lines = fault.change(to_lines(curve.figures[: at + FAULT_LINES]), at)
            alarms = read_alarms(lines, LOOKS["frequent"])[0]
            cases += 1
            delays += [end - at for end in alarms if end >= at][:1]
    return describe(cases, delays, is_fault=fault.is_fault)


def print_table(heads: Sequence[str], table: Iterator[tuple[str, ...]]) -> None:
    print(f"| {' | '.join(heads)} |", flush=True)
    print(f"|{'---|' * len(heads)}", flush=True)
    for row in table:
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    if "--curves" in sys.argv:
        folder = Path(sys.argv[sys.argv.index("--curves") + 1])
        places = [f"{half}, {place}" for half in HALVES for place in ("fast lines", "anywhere")]
        print_table(["fault", *places], public_rows(read_folder(folder)))
    else:
        chosen = TUNING if "--tuning" in sys.argv else TEST
        heads = [", ".join(chosen), *(f"a look every {every} lines" for every in LOOKS.values())]
        print_table(heads, rows(chosen))
