"""Run commands through Slurm: as a step in a job of the caller, or as a short job on an idle node. Hold idle nodes."""

import math
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

from opsctl.base.errors import MissingProgram
from opsctl.base.nodesets import fold
from opsctl.base.ports import Answer, Completed, Runner, TimedOut, run_here

NOT_STARTED = re.compile(
    r"srun: (error: )?.*(Unable to (confirm|create|allocate)|Requested nodes? .*not|Required node not available"
    r"|is not in this job|Invalid|expired|Unable to contact|Job/step already|node configuration is not available"
    r"|allocation failure|Immediate execution impossible|Socket timed out|unrecognized option)"
)
"""Messages of an srun that did not start the command."""
NOT_REACHED = re.compile(r"srun: error: Task launch for .* failed on node \S+: (Communication connection|Socket|Zero)")
"""Messages of an srun that started the command on other nodes."""
STEP_SETTINGS = ("NTASKS_PER_NODE", "DISTRIBUTION", "EXCLUSIVE", "GRES", "NODELIST", "LABELIO", "JOB_ID", "JOBID")
JOB_SIZE = ("JOB_NODELIST", "JOB_NUM_NODES", "NNODES", "NTASKS", "NPROCS", "TASKS_PER_NODE", "JOB_CPUS_PER_NODE")
"""Variables that may name a part of the job (allocation.py): srun then refuses a step on more nodes."""
REMOVED_ENV = {f"{prefix}_{name}": None for prefix, name in product(("SLURM", "SRUN"), STEP_SETTINGS + JOB_SIZE)}
"""Variables that this process may have from its own job, and that would change the step."""
TIMED_OUT = frozenset({124, 137, -9})
"""Exit codes of timeout(1) for a command that it has ended: by KILL it ends itself as well."""
GRANTED = re.compile(r"Granted job allocation (\d+)")
ANSWER_S = 30.0
"""Time limit for Slurm's commands, beyond the wait for the start of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InJob:
    """Runs a command as a step that takes no resources from the job on the node."""

    runner: Runner
    jobs: Mapping[str, str]
    """ID of a running job of the caller, by node."""
    name: ClassVar[str] = "srun"

    def reaches(self, node: str) -> bool:
        return node in self.jobs

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        # A killed srun leaves the step behind, so the step gets its own time limit.
        minutes = max(1, math.ceil(timeout / 60))
        # Without --mem=0 Slurm refuses the step where another step has all memory of the job.
        options = ("--overlap", "--mem=0", f"--jobid={self.jobs[node]}", f"--time={minutes}")
        return _run_srun(self.runner, self.name, node, options, argv, timeout=timeout, stdin=stdin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeJob:
    """A job that takes whole idle nodes at once, or fails."""

    runner: Runner
    partition: str = ""
    account: str = ""
    minutes: int = 5
    """Time limit of the job, which also ends the job of a command that was killed."""
    wait_s: float = 10
    """Time limit for the start of the job."""

    def options(self, name: str) -> list[str]:
        options = [f"--immediate={max(1, math.ceil(self.wait_s))}", "--exclusive", f"--job-name={name}"]
        options += [f"--partition={self.partition}"] if self.partition else []
        options += [f"--account={self.account}"] if self.account else []
        return [*options, f"--time={self.minutes}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortJob(_NodeJob):
    """Runs a command as a job that takes a whole idle node at once, or fails."""

    idle: Collection[str]
    """The idle nodes."""
    name: ClassVar[str] = "job"

    def reaches(self, node: str) -> bool:
        return node in self.idle

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        options = self.options("opsctl-node")
        return _run_srun(self.runner, self.name, node, options, argv, timeout=timeout + self.wait_s, stdin=stdin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation(_NodeJob):
    """Holds nodes in one job that runs nothing. Needs the right to submit jobs, and nothing else."""

    @contextmanager
    def hold(self, nodes: Sequence[str]) -> Iterator[dict[str, str]]:
        """Yield the job by node; no node if Slurm does not grant all nodes at once."""
        if not nodes:
            yield {}
            return
        name = f"opsctl-node-{secrets.token_hex(4)}"
        try:
            job = self._submit(nodes, name)
            yield dict.fromkeys(nodes, job) if job else {}
        finally:
            # By its name: after a time-out the id is not known.
            with suppress(MissingProgram, TimedOut, OSError):
                self.runner.run(("scancel", f"--name={name}"), timeout=ANSWER_S, env=REMOVED_ENV)

    def _submit(self, nodes: Sequence[str], name: str) -> str:
        """Return the id of the job; empty without a job."""
        options = self.options(name)
        options += [f"--nodelist={fold(nodes)}", f"--nodes={len(nodes)}", "--chdir=/"]
        try:
            done = self.runner.run(("salloc", "--no-shell", *options), timeout=self.wait_s + ANSWER_S, env=REMOVED_ENV)
        except (MissingProgram, TimedOut, OSError):
            return ""
        granted = GRANTED.search(done.err)
        return granted[1] if granted and done.code == 0 else ""


def run_on_all(runner: Runner, job: str, nodes: Sequence[str], argv: Sequence[str], *, timeout: float) -> Completed:
    """Run a command once on each node of a running job, as one step that takes no resources.

    After `timeout` seconds the step is ended, and what the other nodes have printed is returned with an exit code
    in TIMED_OUT. Raises MissingProgram and TimedOut.
    """
    size = (f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}")
    step = ("srun", "--overlap", "--mem=0", f"--jobid={job}", "--time=1", *size, "--chdir=/", *argv)
    # srun waits for a dead node even after TERM.
    ended = ("timeout", "--kill-after=0.3", f"{timeout:g}", *step)
    return runner.run(ended, timeout=timeout + ANSWER_S, env=REMOVED_ENV)


def find_silent_nodes(runner: Runner, job: str, nodes: Sequence[str], *, timeout: float) -> tuple[str, ...] | None:
    """Return the nodes of a running job that certainly do not answer within `timeout`; None if no node answers.

    Nothing is certain if Slurm refuses the step. Raises MissingProgram and TimedOut.
    """
    done = run_on_all(runner, job, nodes, ("sh", "-c", 'echo "$SLURMD_NODENAME"'), timeout=timeout)
    answered = set(done.out.split())
    is_certain = done.code in TIMED_OUT or NOT_REACHED.search(done.err)
    if is_certain and not answered:
        return None
    return tuple(node for node in nodes if node not in answered) if is_certain else ()


def _run_srun(
    runner: Runner, by: str, node: str, options: Sequence[str], argv: Sequence[str], *, timeout: float, stdin: str
) -> Answer:
    command = ("srun", *options, f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--chdir=/", *argv)
    answer = run_here(runner, node, command, by=by, timeout=timeout, stdin=stdin, env=REMOVED_ENV)
    if answer.code and NOT_STARTED.search(answer.err) and not answer.out:
        reasons = (line for line in answer.err.splitlines() if NOT_STARTED.search(line))
        return replace(answer, code=None, problem=next(reasons, answer.err.strip()), may_have_run=False)
    lines = [line for line in answer.err.splitlines(keepends=True) if not line.startswith("srun: ")]
    return replace(answer, err="".join(lines))
