"""The races: how long tasks may run, how many nodes there are, and whether other users wait for the nodes as well."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from race.cluster import queue, slurm

NODES, RANKS_A_NODE = 3, 2
OTHERS = "others"
"""Name of the jobs of other users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What holds for every contender of one race."""

    tasks: int
    minutes: int
    """Time limit of a task."""
    exit_after_s: int
    """The trainer leaves by itself before its task's time is up, as runs of this kind do."""
    others: int = 0
    """Nodes of a job of another user that waits, with a higher priority, whenever the training runs; 0: none waits."""
    others_s: int = 60
    """How long that job runs once it gets nodes."""
    cluster: int = 0
    """Nodes that others hold until the race begins, so that the launch is no part of it; 0: none."""


FREE = Course(tasks=20, minutes=2, exit_after_s=110)
BUSY = Course(tasks=20, minutes=12, exit_after_s=690, others=5, cluster=7)
"""Of seven nodes, the job of another user fits beside neither NODES nodes nor NODES and two spares, also when one node
is dead. Whoever gives nodes back waits for its end."""


@dataclass(slots=True, kw_only=True)
class Others:
    """Other users of the cluster."""

    course: Course
    submitted: list[str] = field(default_factory=list)

    def hold_all(self) -> None:
        """Hold all nodes, until `give_back`."""
        if self.course.cluster:
            for _ in range(random.randrange(40, 80)):  # jobs of several clusters of this machine get different numbers
                slurm("sbatch", "--hold", "--job-name=none", "--output=/dev/null", "--wrap=true")
            slurm("scancel", "--name=none")
            self._submit(self.course.cluster, minutes=self.course.minutes, seconds=3600)
            while queue(OTHERS)[-1].state != "RUNNING":
                time.sleep(0.1)

    def give_back(self) -> None:
        if self.course.cluster:
            slurm("scancel", *self.submitted)

    def pass_to(self, *, trains: bool) -> None:
        """Submit a job if none waits or runs and the training runs."""
        if not self.course.others or not trains or self._are_there():
            return
        seconds = self.course.others_s
        self._submit(self.course.others, minutes=seconds // 60 + 1, seconds=seconds)

    def _submit(self, nodes: int, *, minutes: int, seconds: int) -> None:
        size = (f"--nodes={nodes}", "--exclusive", f"--time={minutes}")
        job = (f"--job-name={OTHERS}", "--output=/dev/null", "--priority=4000000", f"--wrap=sleep {seconds}")
        self.submitted.append(slurm("sbatch", "--parsable", *size, *job).strip())

    def _are_there(self) -> bool:
        return any(not row.is_over for row in queue(OTHERS))
