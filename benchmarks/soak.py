"""Hundreds of watch cycles over twenty trains on a real Slurm, with faults at random. What people should have been told
is known, and compared with what they were told.

python -P benchmarks/soak.py [CYCLES] [SEED]        500 cycles take some minutes
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil

from opsctl.app import App
from opsctl.config import load_site
from opsctl.model import JobState, Level
from opsctl.rundir import RunDir
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.config import Spec
from opsctl.sandbox.record import Places
from opsctl.system import SystemClock, SystemRunner
from opsctl.watch import Report, Watch

TRAINS = 20
LINE = " iteration {step:8d}/ 999999 | elapsed time per iteration (s): 1.0 | lm loss: {loss:.6E} | TFLOPs: 149.0 |\n"
SITE = (
    'root = "{root}"\n[watch]\ntimeout_seconds = 30\n[alerts]\nwarning_looks = 1\nflap_minutes = 0\nrepeat_hours = []\n'
)
TRAIN = """name = "{name}"
command = ["sleep", "100000"]
[slurm]
nodes = 1
time_limit = "600"
tasks = 2
memory_per_node = "10"
[watch]
off = ["checkpoint"]
"""


class Runner:
    """Real programs, counted; Slurm's fail while `is_down`."""

    def __init__(self, env: dict[str, str]) -> None:
        self.real, self.calls, self.is_down = SystemRunner(env=env), Counter[str](), False

    def run(self, argv, *, timeout, stdin="", env=None):  # noqa: ANN001, ANN201 (the Runner port has the types)
        self.calls[argv[0]] += 1
        if self.is_down and argv[0] in {"squeue", "sinfo", "sacct"}:
            refused = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
            argv = ("sh", "-c", refused)
        return self.real.run(argv, timeout=timeout, stdin=stdin, env=env)


class Clock(SystemClock):
    ahead = timedelta()

    def now(self):  # noqa: ANN201 (the Clock port has the types)
        return super().now() + self.ahead


class SoakApp(App):
    soak_runner: Runner

    @property
    def engine_runner(self) -> Runner:  # type: ignore[override]  # a stand-in that counts
        return self.soak_runner


@dataclass
class Soak:
    app: SoakApp
    sandbox: Sandbox
    dice: random.Random
    expected: dict[str, list[Level]] = field(default_factory=lambda: defaultdict(list))
    told: dict[str, list[Level]] = field(default_factory=lambda: defaultdict(list))
    faults: Counter[str] = field(default_factory=Counter)
    undo: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    nans: set[str] = field(default_factory=set)
    """Trains whose loss is none now."""
    steps: Counter[str] = field(default_factory=Counter)

    def run_dir(self, name: str) -> RunDir:
        return RunDir(self.app.root / name)

    def opsctl(self, *words: str) -> None:
        argv = [sys.executable, "-m", "opsctl", "--site", str(self.app.site_path), *words]
        env = {**os.environ, **self.sandbox.env()}
        subprocess.run(argv, env=env, check=True, capture_output=True)

    def launch(self, name: str) -> None:
        path = self.app.root.parent / f"{name}.toml"
        path.write_text(TRAIN.format(name=name))
        self.opsctl("launch", str(path))

    def say(self, name: str) -> None:
        self.steps[name] += 1
        loss = float("nan") if name in self.nans else 2 * (1 + self.dice.gauss(0, 0.005))
        with self.run_dir(name).main_log.open("a") as log:
            log.write(LINE.format(step=self.steps[name], loss=loss))

    # --- faults; each says what people should be told, now and when it is undone

    def cancelled(self, name: str) -> Callable[[], None]:
        rows = [job for job in self.app.scheduler.jobs() if job.name == name and not job.state.is_final]
        for array in {job.array for job in rows}:
            self.app.scheduler.cancel(array)
        self._until(lambda: all(j.state.is_final for j in self.app.scheduler.jobs() if j.name == name))
        self.expected[f"slurm_status/{name}"].append(Level.CRITICAL)

        def again() -> None:
            self.launch(name)
            self.expected[f"slurm_status/{name}"].append(Level.OK)

        return again

    def nan(self, name: str) -> Callable[[], None]:
        self.nans.add(name)
        self.expected[f"loss/{name}"].append(Level.CRITICAL)

        def well() -> None:
            self.nans.discard(name)
            self.expected[f"loss/{name}"].append(Level.OK)

        return well

    def unreadable(self, name: str) -> Callable[[], None]:
        config = self.run_dir(name).config
        before = config.read_text()
        config.write_text("name = ")
        self.expected[f"train/{name}"].append(Level.WARNING)

        def readable() -> None:
            config.write_text(before)
            self.expected[f"train/{name}"].append(Level.OK)

        return readable

    def rubbish(self, name: str) -> Callable[[], None]:
        with self.run_dir(name).main_log.open("ab") as log:
            log.write(self.dice.randbytes(50_000) + b"\n iteration 9999999/ 3 | lm lo")
        return lambda: self.run_dir(name).main_log.open("ab").write(b"\n") and None

    def rotated(self, name: str) -> Callable[[], None]:
        log = self.run_dir(name).main_log
        if log.exists():
            log.rename(log.with_suffix(".1"))
        return lambda: None

    def forgotten(self, _: str) -> Callable[[], None]:
        shutil.rmtree(self.app.root / ".site/watch", ignore_errors=True)
        return lambda: None

    def silent_slurm(self, _: str) -> Callable[[], None]:
        self.app.soak_runner.is_down = True
        return lambda: setattr(self.app.soak_runner, "is_down", False)

    def skewed(self, _: str) -> Callable[[], None]:
        Clock.ahead += timedelta(seconds=self.dice.choice((-90, 90)))
        return lambda: None

    def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            SystemClock().sleep(0.05)

    # --- cycles

    def cycle(self, number: int) -> None:
        for due, well in [each for each in self.undo if each[0] <= number]:
            well()
            self.undo.remove((due, well))
        if not self.undo and self.dice.random() < 0.7:
            self._break(number)
        for name in (f"t{n}" for n in range(TRAINS)):
            self.say(name)
        reports: list[Report] = []
        both = [threading.Thread(target=lambda: reports.append(Watch(world=self.app).cycle()))]
        if self.dice.random() < 0.2:
            self.faults["two cycles at once"] += 1
            both.append(threading.Thread(target=lambda: reports.append(Watch(world=self.app).cycle())))
        for each in both:
            each.start()
        for each in both:
            each.join()
        for transition in (each for report in reports for each in report.transitions):
            self.told[transition.finding.key].append(transition.finding.level)
        Clock.ahead += timedelta(minutes=10)

    def _break(self, number: int) -> None:
        kinds = (self.cancelled, self.nan, self.unreadable, self.rubbish, self.rotated, self.forgotten,
                 self.silent_slurm, self.skewed)  # fmt: skip
        fault = self.dice.choice(kinds)
        self.faults[fault.__name__] += 1
        self.undo.append((number + self.dice.randint(1, 3), fault(f"t{self.dice.randrange(TRAINS)}")))


def main(cycles: int, seed: int) -> int:
    clock, runner = Clock(), SystemRunner()
    with tempfile.TemporaryDirectory(prefix="opsctl-soak-") as name:
        place = Path(name)
        place.chmod(0o755)
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        spec = Spec(name="soak", nodes=4, fast=True)
        places = Places(state=place / "sandbox", cache=place / "cache")
        sandbox = Sandbox.up(spec, places=places, clock=SystemClock(), runner=runner)
        try:
            os.environ.update(sandbox.env())
            site = place / "site.toml"
            site.write_text(SITE.format(root=place / "trains"))
            app = SoakApp(site=load_site(site), site_path=site, clock=clock, runner=runner)
            object.__setattr__(app, "soak_runner", Runner(sandbox.env()))
            return _soak(Soak(app=app, sandbox=sandbox, dice=random.Random(seed)), cycles)
        finally:
            sandbox.down(grace=0.5)


def _soak(soak: Soak, cycles: int) -> int:
    for n in range(TRAINS):
        soak.launch(f"t{n}")
        for _ in range(40):
            soak.say(f"t{n}")
    soak._until(lambda: any(job.state is JobState.RUNNING for job in soak.app.scheduler.jobs()))
    soak.app.soak_runner.calls.clear()
    memory = [psutil.Process().memory_info().rss >> 20]
    for number in range(cycles):
        soak.cycle(number)
    soak.app.soak_runner.is_down = False
    for _, well in soak.undo:
        well()
    soak.undo.clear()
    soak.cycle(cycles)
    memory.append(psutil.Process().memory_info().rss >> 20)
    keys = set(soak.expected) | set(soak.told)
    wrong = {key: (soak.expected[key], soak.told[key]) for key in keys if soak.expected[key] != soak.told[key]}
    print(f"cycles {cycles}, trains {TRAINS}, faults {sum(soak.faults.values())}: {dict(soak.faults)}")
    print(f"alerts expected {sum(map(len, soak.expected.values()))}, told {sum(map(len, soak.told.values()))}")
    print(f"keys that were told otherwise: {len(wrong)} {wrong or ''}")
    print(
        f"memory at start and end: {memory[0]} / {memory[1]} MiB; Slurm's programs: {dict(soak.app.soak_runner.calls)}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*(int(each) for each in [*sys.argv[1:], *("500", "1")[len(sys.argv) - 1 :]])))
