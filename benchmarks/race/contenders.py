"""Who races: each starts training in its own way, and is then left alone, or looked after by a person with a clock."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from race.cluster import queue, slurm
from race.course import FREE, NODES, RANKS_A_NODE, Course

TRAINER = Path(__file__).with_name("trainer.py")
SCRIPT = """#!/bin/bash
set -o pipefail
{launch} 2>&1
"""
STEP = "srun --kill-on-bad-exit=1 {python} {trainer}"
LOOP = f"""until srun --nodes={NODES} --ntasks={NODES * RANKS_A_NODE} --kill-on-bad-exit=1 {{python}} {{trainer}}; do
    sleep 1
done"""
AGENT = (
    "srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --no-kill bash -c {agent}"
)
ELASTIC = (
    f" --nnodes={NODES}:{{nodes}} --nproc-per-node={RANKS_A_NODE} --max-restarts=20"
    " --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=127.0.0.1:$((30000 + SLURM_JOB_ID % 2000))"
    " --rdzv-conf=is_host=$((SLURM_PROCID == 0)),last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
    " {trainer}"
)
TORCHRUN = f"exec {{python}} -m torch.distributed.run {ELASTIC}"
FT_LIBRARY = TRAINER.parents[2] / "build" / "nvrx"
"""Where `pip install --target build/nvrx --no-deps nvidia-resiliency-ext defusedxml nvidia-ml-py pynvml` puts it."""
FT_LAUNCHER = (
    f"export PYTHONPATH={FT_LIBRARY}; exec {{python}} -m nvidia_resiliency_ext.fault_tolerance.launcher"
    " --ft-workload-check-interval=0.5 --ft-initial-rank-heartbeat-timeout=30 --ft-rank-heartbeat-timeout=3"
    " --ft-enable-nic-monitor=false"
    f"{ELASTIC}"
)
"""Tuned as opsctl is: a rank without a heartbeat for 3 s hangs."""


@dataclass(kw_only=True)
class Contender:
    """One that was given `place` for its files, with a subdirectory for checkpoints."""

    place: Path
    course: Course = FREE
    spares: int = 0
    """Nodes that it holds beyond those that the training needs."""
    launch: str = STEP
    """How its job starts the trainer."""
    agent: str = TORCHRUN
    """What starts the ranks of a node, where `launch` starts agents."""
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
        words = ("--place", self.place, "--checkpoints", self.checkpoints, "--exit-after", self.course.exit_after_s)
        trainer = " ".join(map(str, (TRAINER, *words)))
        nodes = NODES + self.spares
        agent = shlex.quote(self.agent.format(python=sys.executable, trainer=trainer, nodes=nodes))
        launch = self.launch.format(python=sys.executable, trainer=trainer, nodes=nodes, agent=agent)
        (self.place / "job.sh").write_text(SCRIPT.format(launch=launch))

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
        size = (f"--nodes={NODES + self.spares}", f"--ntasks-per-node={RANKS_A_NODE}", f"--time={self.course.minutes}")
        keep = ("--no-kill",) if self.spares else ()
        job = ("--job-name=race", f"--output={self.log}", "--open-mode=append", str(self.place / "job.sh"))
        slurm("sbatch", *size, *keep, *options, *job)


class Plain(Contender):
    """An array of which one task runs at a time, and nobody awake; `launch` may start the ranks again in the task."""

    def start(self) -> None:
        self.submit(f"--array=1-{self.course.tasks}%1", "--no-requeue")


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
            self.submit(f"--array=1-{self.course.tasks}%1", "--no-requeue", *exclude)
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
            timeout_min=self.course.minutes,
            slurm_signal_delay_s=20,
            slurm_additional_parameters={"requeue": True},
        )
        executor.submit(Training(self.place, self.checkpoints))
