"""Who races: each starts training in its own way, and is then left alone, or looked after by a person with a clock."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from race.cluster import queue, slurm

NODES, RANKS_A_NODE, TASKS, MINUTES = 3, 2, 20, 2
EXIT_AFTER_S = 110
"""The trainer leaves by itself before its task's two minutes are up, as runs of this kind do."""
TRAINER = Path(__file__).with_name("trainer.py")
SIZE = (f"--nodes={NODES}", f"--ntasks-per-node={RANKS_A_NODE}", f"--time={MINUTES}")
SCRIPT = """#!/bin/bash
set -o pipefail
srun --kill-on-bad-exit=1 {python} {trainer} --place {place} --checkpoints {checkpoints} --exit-after {exit_after} 2>&1
"""


@dataclass(kw_only=True)
class Contender:
    """One that was given `place` for its files, with a subdirectory for checkpoints."""

    place: Path
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        return self.place / "checkpoints"

    @property
    def log(self) -> Path:
        """Where the trainer's output goes."""
        return self.place / "log.txt"

    def prepare(self) -> None:
        """What takes time and is not part of the race."""
        self.checkpoints.mkdir()
        script = SCRIPT.format(
            python=sys.executable,
            trainer=TRAINER,
            place=self.place,
            checkpoints=self.checkpoints,
            exit_after=EXIT_AFTER_S,
        )
        (self.place / "job.sh").write_text(script)

    def start(self) -> None:
        raise NotImplementedError

    def pass_to(self, now: float) -> None:
        """What is done at `now` seconds after the start."""

    def spawn(self, *argv: str) -> subprocess.Popen[bytes]:
        """A process of the contender's own; what it says is kept beside the log."""
        with (self.place / "own.txt").open("ab") as out:
            self.children.append(subprocess.Popen(argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL))
        return self.children[-1]

    def submit(self, *options: str) -> None:
        job = ("--job-name=race", f"--output={self.log}", "--open-mode=append", str(self.place / "job.sh"))
        slurm("sbatch", *SIZE, *options, *job)


class Plain(Contender):
    """An array of which one task runs at a time, and nobody awake."""

    def start(self) -> None:
        self.submit(f"--array=1-{TASKS}%1", "--no-requeue")


class Retry(Contender):
    """A loop on the login node that submits again whatever has ended."""

    def start(self) -> None:
        self.submit("--no-requeue")

    def pass_to(self, _: float) -> None:
        if not [row for row in queue() if not row.is_over]:
            self.submit("--no-requeue")


@dataclass(kw_only=True)
class Person(Plain):
    """The plain recipe, and somebody who looks every so often, and then does at once all that should be done: ends what
    has not moved since the last look, keeps the nodes from it that the log blames, submits again what has run out."""

    every: float
    steps: int = -1
    bad: set[str] = field(default_factory=set)
    looked: float = 0.0

    def pass_to(self, now: float) -> None:
        if now - self.looked < self.every:
            return
        self.looked = now
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        self.bad |= set(re.findall(r"\[(node\d+)\] RuntimeError: CUDA", text))
        alive = [row for row in queue() if not row.is_over]
        steps, before = len(re.findall("iteration", text)), self.steps
        self.steps = steps
        exclude = (f"--exclude={','.join(sorted(self.bad))}",) if self.bad else ()
        if not alive:
            self.submit(f"--array=1-{TASKS}%1", "--no-requeue", *exclude)
            return
        for array in {row.job.partition("_")[0] for row in alive} if self.bad else ():
            with contextlib.suppress(subprocess.CalledProcessError):  # it says so for the task that runs
                slurm("scontrol", "update", f"JobId={array}", f"ExcNodeList={','.join(sorted(self.bad))}")
        if steps == before:
            for row in alive:
                if row.state == "RUNNING":
                    slurm("scancel", row.job)


class Submitit(Contender):
    """submitit, whose job checkpoints and requeues itself when its time is nearly up."""

    @property
    def log(self) -> Path:
        return self.place / "submitit"

    def start(self) -> None:
        import submitit

        os.environ["PYTHONPATH"] = str(TRAINER.parents[1])  # where its job finds what it is to run
        from race.by_submitit import Training

        executor = submitit.AutoExecutor(folder=self.place / "submitit", cluster="slurm", slurm_max_num_timeout=100)
        executor.update_parameters(
            name="race",
            nodes=NODES,
            tasks_per_node=RANKS_A_NODE,
            timeout_min=MINUTES,
            slurm_signal_delay_s=20,
            slurm_additional_parameters={"requeue": True},
        )
        executor.submit(Training(self.place, self.checkpoints))
