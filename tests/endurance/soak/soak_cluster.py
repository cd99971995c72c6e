"""Twenty trains on a real Slurm: eight that run, two of these in short attempts and two on one node; twelve wait."""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from opsctl.base.model import Job, JobState
from opsctl.host.system import SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.slurm.commands import Slurm
from opsctl.state.files import write_atomic
from opsctl.state.run_dir import RunDir
from opsctl.trainer.contract import Heartbeat, Phase, to_json
from tests.support.trains import until

LONG, SHORT, WAITING = (tuple(f"{kind}{n}" for n in range(many)) for kind, many in (("l", 6), ("s", 2), ("w", 12)))
NODES = len(LONG) + len(SHORT)
PAIR, SHARED_NODE = LONG[-2:], "node001"
"""Two trains that run on one node, which no other train may use."""
MAX_ROLLBACK_STEPS = 1500
LINES = 12
LINE = " iteration {step:8d}/ 9999999 | elapsed time per iteration (s): 1.0 | lm loss: {loss:.6E} | TFLOPs: {speed} |"
TRAIN = Path(__file__).with_name("soak_train.toml").read_text()
SLEEP = "exec sleep 100000"
ATTEMPT = """
cd "$TRAIN_CHECKPOINT_DIR" && mkdir -p global_step$SLURM_ARRAY_TASK_ID
echo weights >global_step$SLURM_ARRAY_TASK_ID/mp_rank_00_model_states.pt
echo global_step$SLURM_ARRAY_TASK_ID >latest
sleep 20
"""
"""Each attempt advances its train, however slow the machine is."""


@dataclass
class Field:
    place: Path
    sandbox: Sandbox
    site: Path
    dice: random.Random
    ahead: timedelta = timedelta()
    """Of the watchers' clocks."""
    silent: set[str] = field(default_factory=set)
    """Trains that run and write nothing."""
    nans: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    """Trains that are not in the queue."""
    steps: Counter[str] = field(default_factory=Counter)
    inside: dict[str, int] = field(default_factory=dict)
    """Run directories that are read-only for all but who has this descriptor of them."""

    changed: float = 0.0
    """When the controller was last given something that it must not forget."""

    def run(self, name: str) -> RunDir:
        return RunDir(self.place / "trains" / name)

    def program(self, *argv: str) -> str:
        """What one of Slurm's programs prints, without the faults that watchers meet."""
        if argv[0] != "squeue":
            self.changed = time.monotonic()
        env = {**os.environ, **self.sandbox.env()}
        return subprocess.run(argv, env=env, check=True, capture_output=True, text=True, timeout=250).stdout

    def jobs(self, name: str) -> list[Job]:
        rows = Slurm(SystemRunner(env=self.sandbox.env())).jobs()
        return [job for job in rows if job.name == name and not job.state.is_final]

    def launch(self, name: str) -> None:
        command, tasks, extra, off = SLEEP, 2, ["--exclusive", f"--exclude={SHARED_NODE}"], ["checkpoint"]
        if name in PAIR:
            extra = [f"--nodelist={SHARED_NODE}"]
        if name in SHORT:
            # An attempt's guard writes into its log by the machine's clock, which the watchers' is hours ahead of.
            command, tasks, off = ATTEMPT, 300, ["checkpoint", "hang"]
        elif name in WAITING:
            extra = ["--begin=now+30days"]
        path = self.place / f"{name}.toml"
        path.write_text(TRAIN.format(name=name, command=command, tasks=tasks, extra=extra, off=off))
        self.program(sys.executable, "-m", "opsctl", "--site", str(self.site), "launch", str(path))
        if name in LONG:
            # What begins to run in the seconds before the controller is killed, it would not know any more.
            until(lambda: self.node_of(name) or self._resume())
            until(lambda: self._has_started(name))
            self.changed = time.monotonic()
        self.gone.discard(name)

    def _has_started(self, name: str) -> bool:
        """Whether the guard has written into the log, by the machine's clock, what it writes before the end."""
        attempts = self.run(name).path / "attempts"
        return any(any(attempts.glob(f"{job.array}_*/repro/env.json")) for job in self.jobs(name))

    def _resume(self) -> None:
        """Put the nodes back that Slurm drained because a process did not end in time: there are none to spare."""
        rows = self.program("sinfo", "--noheader", "--Node", "--format=%N %E").splitlines()
        for node in {row.split()[0] for row in rows if row.endswith("Kill task failed")}:
            with contextlib.suppress(subprocess.CalledProcessError):  # not before its processes have ended
                self.program("scontrol", "update", f"nodename={node}", "state=resume")

    def cancel(self, name: str) -> None:
        """Behind opsctl's back."""
        self.program("scancel", *{job.array for job in self.jobs(name)})
        until(lambda: not self.jobs(name))
        self.gone.add(name)

    def node_of(self, name: str) -> str:
        return next((job.nodes for job in self.jobs(name) if job.state is JobState.RUNNING), "")

    def write_progress(self) -> None:
        """Write log lines of every running train, and heartbeats of two trains by clocks that are 90 s off."""
        now = time.time() + self.ahead.total_seconds()
        for name in set(LONG + SHORT) - self.silent - self.gone:
            lines = "".join(self._line(name) for _ in range(LINES))
            self.append(name, lines.encode())
            with self.here(name) as run:
                # By the watchers' clock, which is ahead of the machine's.
                os.utime(run / "logs/main_log.txt", (now, now))
                if name in LONG[:2]:
                    self._beat(run, name, now)

    def roll_back(self, name: str) -> None:
        """Let the train go on from an earlier step, as after `opsctl rollback`: its log repeats some steps."""
        self.steps[name] = max(0, self.steps[name] - self.dice.randint(LINES, MAX_ROLLBACK_STEPS))

    def _line(self, name: str) -> str:
        self.steps[name] += 1
        loss = float("nan") if name in self.nans else 2 * (1 + self.dice.gauss(0, 0.005))
        # A log that was emptied and is as long as before, to the byte, looks like one to which nothing was added.
        more = " " * self.dice.randint(0, 99)
        return LINE.format(step=self.steps[name], loss=loss, speed=80 if name in self.slow else 149) + more + "\n"

    def _beat(self, run: Path, name: str, now: float) -> None:
        attempts = sorted((run / "attempts").glob("*"), key=lambda attempt: attempt.stat().st_mtime)
        if attempts:
            heartbeat = Heartbeat(
                attempt=attempts[-1].name,
                node="n",
                rank=0,
                phase=Phase.TRAIN,
                step=self.steps[name],
                at=now + self.dice.choice((-90, 90)),
                limit_s=1500,
            )
            write_atomic(run / "heartbeat/train.json", to_json(heartbeat))

    def append(self, name: str, data: bytes) -> None:
        with self.here(name) as run, (run / "logs/main_log.txt").open("ab") as log:
            log.write(data)

    @contextlib.contextmanager
    def here(self, name: str) -> Iterator[Path]:
        """The run directory as a node sees it that may write there."""
        yield Path(f"/proc/self/fd/{self.inside[name]}") if name in self.inside else self.run(name).path
