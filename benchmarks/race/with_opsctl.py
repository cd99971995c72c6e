"""opsctl as its user would set it up for such a run, and then goes to bed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from race.contenders import TRAINER, Contender
from race.course import NODES, RANKS_A_NODE

DEFAULT_SITE = """root = "{root}"
trust_parents = true
"""
DEFAULT_TRAIN = """name = "race"
command = {command}
[slurm]
nodes = {nodes}
spare_nodes = {spares}
processes_per_node = {ranks}
time_limit = "{minutes}"
tasks = {tasks}
"""
SITE = f"""{DEFAULT_SITE}[cron]
tick_seconds = 60
drivers = ["slurm"]
partition = "cpu"
[watch]
clock_tolerance_seconds = 0
"""
TRAIN = f"""{DEFAULT_TRAIN}signal_seconds = 0
[guard]
short_attempt_minutes = 0.5
stop_grace_seconds = 3
exit_grace_seconds = 1
poll_seconds = 0.5
[watch]
hang_minutes = 0.05
init_minutes = 0.5
hang_cancels = true
stacks_seconds = 1
"""
"""Limits in proportion: a hang is 12 steps without a line, which for steps of half a minute would be six minutes."""


class Opsctl(Contender):
    """opsctl tuned for tasks of two minutes, with a resident watch."""

    site, train = SITE, TRAIN

    @property
    def root(self) -> Path:
        return self.place / "trains"

    @property
    def run(self) -> Path:
        return self.root / "race"

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints"

    @property
    def log(self) -> Path:
        return self.run / "logs" / "main_log.txt"

    @property
    def checkpoint_words(self) -> list[str]:
        """How the trainer learns where its checkpoints go."""
        return ["--checkpoints", "{{ checkpoint_dir }}"]

    def prepare(self) -> None:
        words = [
            sys.executable,
            str(TRAINER),
            "--place",
            str(self.place),
            *self.checkpoint_words,
            "--exit-after",
            str(self.course.exit_after_s),
        ]
        (self.place / "site.toml").write_text(self.site.format(root=self.root))
        train = self.train.format(
            command=json.dumps(words),
            nodes=NODES,
            spares=self.spares,
            ranks=RANKS_A_NODE,
            minutes=self.course.minutes,
            tasks=self.course.tasks,
        )
        (self.place / "race.toml").write_text(train)
        os.environ["OPSCTL_SITE"] = str(self.place / "site.toml")
        self.checkpoints.mkdir(parents=True)

    def start(self) -> None:
        if code := self.opsctl("launch", str(self.place / "race.toml")).wait():
            raise SystemExit(f"opsctl launch: {code}, see {self.place}/own.txt")
        self.look_after()

    def look_after(self) -> None:
        self.opsctl("cron", "start")
        self.opsctl("watch", "--every", "1s")

    def opsctl(self, *words: str):  # noqa: ANN201
        return self.spawn(sys.executable, "-P", "-m", "opsctl", *words)


class OpsctlDefault(Opsctl):
    """opsctl with default settings, for a trainer with checkpoints of its own, outside of the run directory."""

    site, train = DEFAULT_SITE, DEFAULT_TRAIN

    @property
    def checkpoints(self) -> Path:
        return self.place / "checkpoints"

    @property
    def checkpoint_words(self) -> list[str]:
        return ["--save", str(self.checkpoints)]

    def look_after(self) -> None:
        self.opsctl("cron", "start")
