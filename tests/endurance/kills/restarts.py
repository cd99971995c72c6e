"""Restarts in place that are disturbed: a fault, another one in the moment of the restart, and what is left afterwards.

`python -m tests.endurance.kills.restarts PLACE FIRST LAST` runs the trials with these seeds, one after the other.
"""

import contextlib
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import psutil
import pytest

from opsctl.base.errors import OpsctlError
from opsctl.base.nodesets import expand
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.state.events import Diagnosed, Event, ExclusionDecided, RestartDecided
from opsctl.state.journal import Journal
from tests.endurance.kills.trains import slurm_of
from tests.support.trains import Trains, trains_on, until

NODES, LIMIT_S = 8, 240.0
STEPS = (40, 40, 160)
"""Of a train, one of these. Slurm takes a lost node out of a job after some 15 s: a short train is over before."""
RANK = Path(__file__).with_name("rank.sh").read_text()
GUARD = "short_attempts = 9\nstalled_attempts = 9\nrestarts_per_hour = 9\nstop_after_seconds = 0.5\n"
GUARD += "stop_grace_seconds = 3\nexit_grace_seconds = 4\n"
WRONG_CLOCK = """
import sys
if "opsctl.start_guard" in sys.orig_argv:
    from datetime import UTC, datetime, timedelta
    from opsctl.host.system import SystemClock
    def now(self):
        with open({offset!r}) as file:
            return datetime.now(UTC) + timedelta(seconds=float(file.read() or 0))
    SystemClock.now = now
"""


@dataclass(kw_only=True)
class Trial:
    """One train of two nodes and its disturbances."""

    trains: Trains
    sandbox: Sandbox
    dice: random.Random
    story: list[str] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    """Nodes that lost their power."""
    began: float = field(default_factory=time.monotonic)
    is_killed: bool = False
    undo: list[Callable[[], object]] = field(default_factory=list)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.dice.choice(STEPS)

    @property
    def place(self) -> Path:
        return self.trains.place

    def note(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self.began:6.2f} {text}")

    def events(self) -> list[Event]:
        return list(Journal(self.trains.run(), self.trains.app.clock).events())

    def processes(self) -> Iterator[psutil.Process]:
        """All processes of the train on all nodes."""
        mark = str(self.trains.run().path)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TRAIN_RUN_DIR") == mark or mark in " ".join(process.cmdline()):
                    yield process

    def ranks(self) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[:2] == ["bash", str(self.place / "rank.sh")]:
                    found.append(process)
        return found

    def guards(self) -> list[psutil.Process]:
        """The guards, without the subreapers below them."""
        found = []
        with contextlib.suppress(psutil.Error):
            found = [process for process in self.processes() if "opsctl.start_guard" in process.cmdline()]
            return [guard for guard in found if guard.parent() not in found]
        return found

    # --- the trial

    def launch(self) -> None:
        (self.place / "rank.sh").write_text(RANK.format(place=self.place, last=self.last))
        offset, wrong = self.place / "offset", self.place / "wrong"
        offset.write_text("0")
        wrong.mkdir()
        (wrong / "sitecustomize.py").write_text(WRONG_CLOCK.format(offset=str(offset)))
        spares, command = self.dice.choice((0, 1, 1, 2)), ("bash", str(self.place / "rank.sh"))
        self.note(f"launch with {spares} spares, {self.last} steps")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(wrong))
            path = self.trains.toml(command=command, nodes=2, tasks=4, extra=(), spare_nodes=spares, more=GUARD)
            self.trains.opsctl("launch", path)

    def run(self) -> None:
        self.launch()
        self.await_steps(self.dice.randint(2, 6))
        first = self.dice.choice((self.kill_rank, self.kill_rank, self.fail, self.fail, self.lose_node))
        started = len(self.trains.run().attempts())
        first()
        self.await_moment(started)
        for _ in range(self.dice.choice((1, 1, 1, 2))):
            name, fault = self.dice.choice(sorted(self.disturbances().items()))
            self.note(name)
            with contextlib.suppress(OpsctlError):  # a train that is over refuses a command
                fault()
            time.sleep(self.dice.uniform(0, 1.5))
        for undo in self.undo:
            undo()
        self.await_end()

    def await_steps(self, count: int) -> None:
        until(lambda: self.step() >= count, seconds=LIMIT_S)

    def step(self) -> int:
        path = self.place / "step"
        return int(path.read_text() or 0) if path.exists() else 0

    def await_moment(self, started: int) -> None:
        """Wait for a moment of the restart: at once, after the finalization, the decision, or the next start."""
        run = self.trains.run()
        moments: dict[str, Callable[[], object]] = {
            "at once": lambda: True,
            "finalized": lambda: list(run.path.glob("attempts/*/end.json")),
            "decided": lambda: any(isinstance(event, RestartDecided) for event in self.events()),
            "next attempt": lambda: len(run.attempts()) > started,
        }
        name = self.dice.choice(list(moments))
        until_s = time.monotonic() + 20  # without a restart, most moments do not come
        while not moments[name]() and time.monotonic() < until_s:
            time.sleep(0.01)
        delay = self.dice.choice((0.0, self.dice.uniform(0, 0.5), self.dice.uniform(0, 2)))
        time.sleep(delay)
        self.note(f"moment: {name}, {delay:.2f} s later")

    # --- faults

    def kill_rank(self) -> None:
        for rank in self.ranks()[-1:]:
            self.note("kill a rank")
            with contextlib.suppress(psutil.Error):
                rank.kill()

    def fail(self) -> None:
        for attempt in self.trains.run().attempts():
            (self.place / f"fails-{attempt.name}").touch()
        self.note("all ranks fail")

    def lose_node(self, *, of_ranks: bool = True) -> None:
        rows = [row for row in self.trains.rows() if row.nodes]
        nodes = [node for node in (expand(rows[0].nodes)[1:] if rows else []) if node not in self.dead]
        nodes = nodes[:1] if of_ranks else nodes[1:]
        if not nodes:
            return
        self.dead.add(nodes[0])
        self.note(f"{nodes[0]} loses its power")
        self.sandbox.fault(nodes[0], FaultKind.CRASH)
        if of_ranks and self.dice.random() < 0.7:  # otherwise only Slurm notices it
            self.fail()

    def kill_guard(self) -> None:
        for guard in self.guards():
            with contextlib.suppress(psutil.Error):
                guard.kill()

    def stop_controller(self) -> None:
        self.sandbox.fault("controller", FaultKind.STOP)
        seconds = self.dice.uniform(1, 8)
        time.sleep(seconds)
        self.sandbox.fault("controller", FaultKind.RESUME)

    def restart_controller(self) -> None:
        self.sandbox.fault("controller", FaultKind.RESTART)

    def jump(self) -> None:
        (self.place / "offset").write_text(str(self.dice.choice((-7200, -90, 90, 7200))))

    def arm_kill_switch(self) -> None:
        self.trains.opsctl("kill-switch", "arm", "t", "--reason", "chaos")
        self.is_killed = True

    def hold(self) -> None:
        self.trains.opsctl("hold", "t", "--reason", "chaos")
        self.undo.append(self.release)

    def pause(self) -> None:
        self.trains.opsctl("kill-switch", "arm", "t", "--pause", "--reason", "chaos")
        self.undo.append(self.release)

    def release(self) -> None:
        if not self.is_killed:
            time.sleep(2)
            self.note("release")
            with contextlib.suppress(OpsctlError):
                self.trains.opsctl("release", "t")

    def disturbances(self) -> dict[str, Callable[[], object]]:
        return {
            "kill a rank again": self.kill_rank,
            "all fail again": self.fail,
            "lose a node": self.lose_node,
            "lose a spare": partial(self.lose_node, of_ranks=False),
            "kill the guard": self.kill_guard,
            "stop the controller": self.stop_controller,
            "restart the controller": self.restart_controller,
            "jump of the clock": self.jump,
            "kill switch": self.arm_kill_switch,
            "hold": self.hold,
            "pause": self.pause,
            "restart": lambda: self.trains.opsctl("restart", "t", "--reason", "chaos"),
            "cancel the task": lambda: [self.trains.app.slurm.cancel(row.full_id) for row in self.active()],
        }

    def active(self) -> list:
        return [row for row in self.trains.rows() if row.state.is_active]

    # --- the end

    def await_end(self) -> None:
        """Run watch cycles, as cron does, until the train is over."""
        until_s, released = time.monotonic() + LIMIT_S, 0
        while self.trains.rows() and time.monotonic() < until_s:
            self.trains.opsctl("watch", "failures", "--once")
            rows = self.trains.rows()
            if rows and all(row.is_held for row in rows) and not self.is_killed and released < 3:
                released += 1
                self.note("release what is held")
                self.trains.opsctl("release", "t")
            time.sleep(0.5)
        self.trains.opsctl("watch", "failures", "--once")
        self.note("over" if not self.trains.rows() else "out of time")

    def find_faults(self) -> Iterator[str]:
        """Yield what must never be."""
        if rows := self.trains.rows():
            yield f"is not over: {rows}"
        time.sleep(0.5)
        if left := [" ".join(process.cmdline()) for process in self.processes()]:
            yield f"left running: {left}"
        ends = [json.loads(path.read_text()) for path in self.trains.run().path.glob("attempts/*/end.json")]
        attempts = {attempt.name for attempt in self.trains.run().attempts()}
        if unfinalized := attempts - {end["attempt"] for end in ends}:
            yield f"never finalized: {unfinalized}"
        if not self.is_killed and self.step() < self.last:
            yield f"lost at step {self.step()}: {[(end['attempt'], end['outcome'], end['why']) for end in ends]}"
        if blamed := set(chain.from_iterable(map(list_blamed, self.events()))) - self.dead:
            yield f"blamed without evidence: {blamed}"
        yield from self.find_overlaps()

    def find_overlaps(self) -> Iterator[str]:
        times: dict[str, list[float]] = {}
        for line in (self.place / "beats").read_text().splitlines():
            attempt, _, at = line.split()
            times.setdefault(attempt, []).append(float(at))
        spans = sorted((min(at), max(at), attempt) for attempt, at in times.items())
        for (_, end, one), (begin, _, other) in pairwise(spans):
            if begin < end:
                yield f"{one} and {other} trained at once, for {end - begin:.2f} s"


def list_blamed(event: Event) -> Iterable[str]:
    if isinstance(event, Diagnosed):
        return event.suspects
    return expand(event.nodes) if isinstance(event, ExclusionDecided) else ()


def repair(sandbox: Sandbox, trains: Trains, dead: set[str]) -> None:
    for node in sorted(dead):
        sandbox.fault(node, FaultKind.RESTART)
    until(lambda: {node.state for node in trains.app.slurm.nodes()} == {"IDLE"} or _resume(trains))


def _resume(trains: Trains) -> bool:
    """Put the nodes back that Slurm drained because a process did not end in time."""
    for node in trains.app.slurm.nodes():
        if "DRAIN" in node.state or "DOWN" in node.state:
            with contextlib.suppress(OpsctlError):
                trains.app.runner.run(("scontrol", "update", f"nodename={node.name}", "state=resume"), timeout=30)
    return False


def run_trials(place: Path, seeds: range) -> list[str]:
    """Run trials on one Slurm; return the story of each that failed, whose run directory is kept below `place`."""
    failures = []
    with slurm_of(place, f"chaos-{seeds.start}", many=NODES) as sandbox:
        for seed in seeds:
            with trains_on(sandbox) as trains:
                trial = Trial(trains=trains, sandbox=sandbox, dice=random.Random(seed))
                try:
                    trial.run()
                    wrong = list(trial.find_faults())
                except AssertionError as error:
                    wrong = [f"{error}"]
                if wrong:
                    shutil.copytree(trains.run().path, place / f"failed-{seed}")
                    failures.append("\n".join([f"seed {seed}:", *wrong, *trial.story]))
                print(seed, "FAILED" if wrong else "ok", *wrong, *trial.story, sep=" | ", flush=True)  # noqa: T201 (progress)
                repair(sandbox, trains, trial.dead)
    return failures


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    where, first, last = sys.argv[1:]
    Path(where).mkdir(parents=True, exist_ok=True)
    sys.exit("\n\n".join(run_trials(Path(where), range(int(first), int(last) + 1))) or 0)
