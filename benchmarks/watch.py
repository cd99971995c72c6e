"""The cost of a watch cycle, and the number of false alarms.

python -P benchmarks/watch.py            the time of a cycle: a 1 GB log, twenty trains; about a minute
python -P benchmarks/watch.py --alarms   false alarms per 100,000 log lines of calm runs; some minutes
"""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from opsctl.app import App
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.monitor.watch_cycle import Watch
from opsctl.settings.loader import SiteSettings
from opsctl.state.events import Submitted, Submitting
from opsctl.state.journal import Journal, actor
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import Iteration
from opsctl.watchdogs.loss_curve import LossShape, LossState, advance, shape
from opsctl.watchdogs.new_lines import new_iterations

LINE = (
    " iteration {step:8d}/ 9999999 | elapsed time per iteration (s): 1.0 | lm loss: {loss:.6E} | TFLOPs: {rate:.2f} |\n"
)
CALM_STEPS = 100_000


def line(step: int, dice: random.Random) -> str:
    return LINE.format(step=step, loss=2 * (1 + dice.gauss(0, 0.01)), rate=149 * (1 + dice.gauss(0, 0.005)))


# --- the price


def write_log(path: Path, size: int) -> None:
    """Write a log as ranks do: many lines between two iterations."""
    dice, block = random.Random(1), "[node001:3]: some rank writes a long line without a meaning here " * 3 + "\n"
    with path.open("w") as log:
        written, step = 0, 0
        while written < size:
            step += 1
            written += log.write(block * 500 + line(step, dice))


def log_price(place: Path, size: int = 1 << 30) -> tuple[float, list[float]]:
    """Return the milliseconds of the first read of a log of `size`, and of later reads of some new lines."""
    log, fields, times, dice = place / "main_log.txt", {}, [], random.Random(2)
    write_log(log, size)
    for look in range(21):
        with log.open("a") as out:
            out.write("".join(line(10_000_000 + 10 * look + n, dice) for n in range(10)))
        began = time.perf_counter()
        lines, fields = new_iterations(log, fields)
        times.append(1000 * (time.perf_counter() - began))
        assert len(lines) >= 10
    return times[0], times[1:]


class Queue:
    """A Slurm that runs the first task of every train and answers at once: only opsctl is measured."""

    def __init__(self, names: list[str]) -> None:
        from opsctl.base.model import Job, JobState, Node

        self._jobs = [
            Job(
                id=str(n + 1),
                array=str(n + 1),
                tasks=(1,),
                name=name,
                user=actor(),
                state=JobState.RUNNING,
                nodes="n1",
                comment=f"opsctl:{name}:n",
                start=SystemClock().now(),
            )
            for n, name in enumerate(names)
        ]
        self._nodes = [Node(name="n1", state="MIXED", address="n1")]

    def jobs(self):  # noqa: ANN201 (the Slurm port has the types)
        return self._jobs

    def nodes(self):  # noqa: ANN201 (the Slurm port has the types)
        return self._nodes


class Bench(App):
    queue: Queue

    @property
    def slurm(self):  # type: ignore[override]  # noqa: ANN201 (a stand-in)
        return self.queue


def cycle_price(place: Path, trains: int) -> list[float]:
    """Return the milliseconds of cycles over `trains` trains with growing logs."""
    site, dice = SiteSettings(root=str(place)), random.Random(3)
    app = Bench(site=site, site_path=None, clock=SystemClock(), runner=SystemRunner())
    names = [f"t{n}" for n in range(trains)]
    object.__setattr__(app, "queue", Queue(names))
    for n, name in enumerate(names):
        run = RunDir(place / name)
        run.create()
        run.config.write_text(f'name = "{name}"\ncommand = ["x"]\n[slurm]\nnodes = 1\ntime_limit = "60"\n')
        journal = Journal(run, app.clock)
        journal.append(Submitting(nonce="n", tasks=3, after=""))
        journal.append(Submitted(nonce="n", array=str(n + 1)))
        run.main_log.write_text("".join(line(step, dice) for step in range(2000)))
    watching, times = Watch(services=app), []
    for look in range(11):
        for name in names:
            with RunDir(place / name).main_log.open("a") as log:
                log.write("".join(line(2000 + 10 * look + n, dice) for n in range(10)))
        began = time.perf_counter()
        report = watching.cycle()
        times.append(1000 * (time.perf_counter() - began))
        assert not report.problems, report.problems
    return times[1:]


# --- false alarms


def calm(step: int) -> float:
    return 1.7 + 8 * (step + 200) ** -0.4


def bell(share: float) -> Callable[[random.Random], float]:
    return lambda dice: dice.gauss(0, share)


def student(dice: random.Random) -> float:
    """Heavy tails: small batches, of which some are odd."""
    return 0.02 * dice.gauss(0, 1) / math.sqrt(sum(dice.gauss(0, 1) ** 2 for _ in range(5)) / 5)


def swinging(decay: float, share: float) -> Callable[[random.Random], float]:
    """A loss that wanders about its level, as with data in long stretches of one kind."""
    state = [0.0]

    def next_one(dice: random.Random) -> float:
        state[0] = decay * state[0] + math.sqrt(1 - decay**2) * dice.gauss(0, share)
        return state[0]

    return next_one


NOISES: dict[str, Callable[[random.Random], float]] = {
    "bell curve, 0.5 %": bell(0.005),
    "bell curve, 1 %": bell(0.01),
    "bell curve, 5 %": bell(0.05),
    "heavy tails (Student's t, 5 degrees), 2 %": student,
    "swings of some 3 lines, 1 %": swinging(0.7, 0.01),
    "swings of some 10 lines, 1 %": swinging(0.9, 0.01),
    "swings of some 10 lines, 2 %": swinging(0.9, 0.02),
}


def alarms(noise: Callable[[random.Random], float], seed: int) -> Counter[LossShape]:
    """Return how often every shape begins that would be alerted."""
    dice, curve, last, counter = random.Random(seed), LossState(), LossShape.LEARNING, Counter[LossShape]()
    for step in range(1, CALM_STEPS + 1):
        curve = advance(curve, [Iteration(step=step, loss=calm(step) * (1 + noise(dice)), grad_norm=0.2)])
        now = shape(curve)
        if now is not last and now not in {LossShape.CALM, LossShape.LEARNING}:
            counter[now] += 1
        last = now
    return counter


def rows() -> Iterator[tuple[str, str]]:
    if "--alarms" in sys.argv:
        for name, noise in NOISES.items():
            counter = alarms(noise, seed=1)
            text = ", ".join(f"{count} {kind}" for kind, count in counter.items())
            yield f"false alarms in {CALM_STEPS:,} lines, {name}", text or "0"
        return
    with tempfile.TemporaryDirectory(prefix="opsctl-bench-") as name:
        os.environ["XDG_STATE_HOME"] = name
        first, later = log_price(Path(name))
        yield "first read of a log of 1 GiB", f"{first:.0f} ms"
        yield (
            "a later read of 10 new lines, median and worst of 20",
            f"{statistics.median(later):.2f} / {max(later):.2f} ms",
        )
        for trains in (1, 20):
            times = cycle_price(Path(name) / f"root{trains}", trains)
            text = f"{statistics.median(times):.0f} / {max(times):.0f} ms"
            yield f"a whole cycle over {trains} trains without Slurm's answer, median and worst of 10", text


if __name__ == "__main__":
    for what, figure in rows():
        print(f"{what:88} {figure}", flush=True)
