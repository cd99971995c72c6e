"""The races: how long tasks may run, how many nodes there are, and whether other users wait for the nodes as well."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field

from race.cluster import OVER, read, slurm

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


FREE = Course(tasks=20, minutes=2, exit_after_s=110)
BUSY = Course(tasks=20, minutes=12, exit_after_s=690, others=5)
"""Of seven nodes, the job of another user fits beside neither NODES nodes nor NODES and two spares, also when one node
is dead. Whoever gives nodes back waits for its end."""


@dataclass(slots=True, kw_only=True)
class Others:
    """Other users of the cluster."""

    course: Course
    submitted: list[str] = field(default_factory=list)

    def pass_to(self, *, trains: bool) -> None:
        """Submit a job if none waits or runs and the training runs."""
        if not self.course.others or not trains or self._are_there():
            return
        seconds = self.course.others_s
        size = (f"--nodes={self.course.others}", "--exclusive", f"--time={seconds // 60 + 1}")
        job = (f"--job-name={OTHERS}", "--output=/dev/null", "--priority=4000000", f"--wrap=sleep {seconds}")
        self.submitted.append(slurm("sbatch", "--parsable", *size, *job).strip())

    def _are_there(self) -> bool:
        if not self.submitted:
            return False
        line = ("squeue", "--noheader", "--states=all", f"--jobs={self.submitted[-1]}", "--format=%i|%A|%T|%S|%e|%r")
        try:
            rows = [read(row.split("|")) for row in slurm(*line).splitlines()]
        except subprocess.CalledProcessError:  # forgotten long ago
            return False
        return any(row.state not in OVER for row in rows)
