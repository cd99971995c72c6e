"""The bad night: what breaks when, the same for every contender, and how it is broken.

Times are shares of the race. A fault hits whatever runs then; a contender of which nothing runs is spared. What is
broken stays so, except for the disk, which somebody clears after 20 s.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind, read_faults, run_lines
from opsctl.sandbox.record import Places

SCHEDULE = {"gpu": 0.075, "rank": 0.20, "disk": 0.32, "hang": 0.45, "node": 0.62, "bug": 0.97}
"""gpu: each rank on node002 dies of it, now and in every later attempt.
rank: one rank is killed. disk: the checkpoints' file system is full for 20 s. hang: one rank stands still.
node: the node of the last rank loses power, its slurmd and all that runs there.
bug: the code fails at each step from now on, so that the rest is lost for everybody, and what counts is how many tasks
are burnt on it."""
BUSY_SCHEDULES = (
    {"hang": 0.2, "node": 0.37, "rank": 0.5, "disk": 0.57},
    {"rank": 0.15, "disk": 0.3, "stuck": 0.42, "node": 0.65},
    {"node": 0.12, "stuck": 0.3, "disk": 0.55, "rank": 0.7},
)
"""On the busy cluster, the order depends on the seed. stuck: one rank waits for ever in its code, as one whose data
does not come, and all others wait for it."""
SPREAD = 0.01
"""The seed moves each by up to so much."""
DISK_S = 20.0
GPU_NODE = "node002"
FAULTS = read_faults()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    at: float
    """Seconds after the start."""


def schedule(names: tuple[str, ...], *, seconds: float, seed: int, is_busy: bool = False) -> list[Fault]:
    dice = random.Random(seed)
    shares = BUSY_SCHEDULES[(seed - 1) % len(BUSY_SCHEDULES)] if is_busy else SCHEDULE
    moved = {name: (share + dice.uniform(-SPREAD, SPREAD)) * seconds for name, share in shares.items()}
    return sorted((Fault(name=name, at=round(moved[name], 1)) for name in names if name in moved), key=lambda f: f.at)


@dataclass(slots=True, kw_only=True)
class Night:
    """Breaks things in one contender's cluster."""

    faults: list[Fault]
    place: Path
    checkpoints: Path
    done: list[tuple[float, str]]
    """When what was done, in seconds after the start."""
    _clears: float = float("inf")

    def pass_to(self, now: float) -> None:
        """Do what is due at `now` seconds after the start."""
        while self.faults and self.faults[0].at <= now:
            fault = self.faults.pop(0)
            self.done.append((now, fault.name))
            self._break(fault.name, now)
        if now >= self._clears:
            (self.checkpoints / "filler").unlink()
            self.done.append((now, "disk is free again"))
            self._clears = float("inf")

    def _break(self, name: str, now: float) -> None:
        """Break what the name says, by the lines of the product's table of faults where the fault is the same."""
        lines = {"gpu": FAULTS["gpu-error"].inject, "bug": FAULTS["code-bug"].inject}
        if name == "disk":
            self._run_lines(f"fill_disk {self.checkpoints}")
            self._clears = now + DISK_S
        elif name in lines:
            self._run_lines(lines[name])
        elif name == "node":
            lose_last_node()
        else:
            for rank in ranks()[-1:]:
                if name == "stuck":
                    self._run_lines(f"plant stuck-{rank.pid}")
                else:
                    rank.send_signal(signal.SIGKILL if name == "rank" else signal.SIGSTOP)

    def _run_lines(self, lines: str) -> None:
        run_lines(lines, {"RUN": str(self.place), "NODE": GPU_NODE}, SystemRunner())


def lose_last_node() -> None:
    """Let the node of the last rank lose power; not the first node, whose death ends the job for everybody."""
    nodes = [environ for environ in (rank.environ() for rank in ranks()) if environ["SLURM_NODEID"] != "0"]
    for environ in nodes[-1:]:
        lose_power(environ["SLURMD_NODENAME"])


def ranks() -> list[psutil.Process]:
    """The trainers that run here, by rank, whoever launched them."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words, environ = process.cmdline()[1:4], process.environ()
            is_trainer = any(word.endswith("race/trainer.py") for word in words[:2])  # torchrun adds -u
            if is_trainer or "submitit.core._submit" in words:
                found[process] = int(environ.get("RANK", environ["SLURM_PROCID"]))
    return sorted(found, key=lambda process: found[process])


def lose_power(node: str) -> None:
    """The slurmd and all that runs on the node is gone at once."""
    here = Path(os.environ["SLURM_CONF"]).parents[1]  # as `opsctl sandbox run` lays it out
    places = replace(Places.default(), state=here / "state", run=here)
    Sandbox.open("run", clock=SystemClock(), runner=SystemRunner(), places=places).fault(node, FaultKind.CRASH)
