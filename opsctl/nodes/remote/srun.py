"""Through Slurm: a step in a job of ours that has the node, or a short job on an idle one."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from opsctl.nodes.remote.local import run_here
from opsctl.ports import Answer, Runner

NOT_BEGUN = re.compile(
    r"srun: (error: )?.*(Unable to (confirm|create|allocate)|Requested nodes? .*not|Required node not available"
    r"|is not in this job|Invalid|expired|Unable to contact|Job/step already|node configuration is not available"
    r"|allocation failure|Immediate execution impossible|Socket timed out|unrecognized option)"
)
NO_SETTINGS = {
    f"{prefix}_{name}": None
    for prefix in ("SLURM", "SRUN")
    for name in ("NTASKS_PER_NODE", "DISTRIBUTION", "EXCLUSIVE", "GRES", "NODELIST", "LABELIO", "JOB_ID", "JOBID")
}
"""What this process may have from a job that it runs in itself, and what would change the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InJob:
    """A step that takes nothing from the job that has the node."""

    runner: Runner
    jobs: Mapping[str, str]
    """For each node the id of a running job of ours."""
    name: ClassVar[str] = "srun"

    def reaches(self, node: str) -> bool:
        return node in self.jobs

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        options = ("--overlap", f"--jobid={self.jobs[node]}")
        return _srun(self.runner, self.name, node, options, argv, timeout=timeout, stdin=stdin)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortJob:
    """A job of its own with all of an idle node, or at once none."""

    runner: Runner
    idle: Collection[str]
    partition: str = ""
    account: str = ""
    minutes: int = 5
    wait: float = 10
    """Seconds to get the node."""
    name: ClassVar[str] = "job"

    def reaches(self, node: str) -> bool:
        return node in self.idle

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        options = [f"--immediate={max(1, math.ceil(self.wait))}", "--exclusive", "--job-name=opsctl-node"]
        options += [f"--partition={self.partition}"] if self.partition else []
        options += [f"--account={self.account}"] if self.account else []
        return _srun(
            self.runner, self.name, node, (*options, f"--time={self.minutes}"), argv, timeout=timeout + self.wait,
            stdin=stdin,
        )  # fmt: skip


def _srun(
    runner: Runner, by: str, node: str, options: Sequence[str], argv: Sequence[str], *, timeout: float, stdin: str
) -> Answer:
    # A limit of the step's own: an srun that is killed leaves its step behind.
    limit = () if by == ShortJob.name else (f"--time={max(1, math.ceil(timeout / 60))}",)
    whole = ("srun", *options, *limit, f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--chdir=/", *argv)
    answer = run_here(runner, node, whole, by=by, timeout=timeout, stdin=stdin, env=NO_SETTINGS)
    if answer.code and NOT_BEGUN.search(answer.err) and not answer.out:
        text = next((line for line in answer.err.splitlines() if NOT_BEGUN.search(line)), answer.err.strip())
        return replace(answer, code=None, problem=text, may_have_run=False)
    noise = [line for line in answer.err.splitlines(keepends=True) if not line.startswith("srun: ")]
    return replace(answer, err="".join(noise))
