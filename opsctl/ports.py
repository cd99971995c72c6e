"""The interfaces to clock, processes, nodes and Slurm. `host/system.py` and `scheduler/` implement these contracts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, TypeVar

from opsctl.model import Accounting, DrainReason, Finding, Job, LaunchPlan, Limits, Node, Partition, Reservation

Context_contra = TypeVar("Context_contra", contravariant=True)
Target_contra = TypeVar("Target_contra", contravariant=True)
Observation = TypeVar("Observation")


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the current time, in UTC."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A program that has ended. A non-zero exit code is data, not an error."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str


class TimedOut(Exception):
    """A program that exceeded its timeout and was killed. Its effects are unknown."""

    def __init__(self, argv: Sequence[str], timeout: float) -> None:
        super().__init__(f"{argv[0]} did not answer within {timeout:g} s")
        self.argv = tuple(argv)


class Flooded(TimedOut):
    """A program that exceeded the output limit and was killed."""

    def __init__(self, argv: Sequence[str], max_bytes: int) -> None:
        Exception.__init__(self, f"{argv[0]} printed more than {max_bytes >> 20} MiB and was ended")
        self.argv = tuple(argv)


class Runner(Protocol):
    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: str = "", env: Mapping[str, str | None] | None = None
    ) -> Completed:
        """Run `argv` without a shell; kill the program after `timeout` seconds.

        `env` is merged into the environment; None removes a variable. Raises MissingProgram, TimedOut, or Flooded (a
        TimedOut) for too much output. A process that hangs in the kernel is left behind.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a command on a node. Without an exit code the command did not end, and its result is unknown."""

    node: str
    by: str
    """The shell that ran the command: `local`, `srun`, `job`, `ssh`."""
    code: int | None = None
    out: str = ""
    err: str = ""
    problem: str = ""
    """Why there is no exit code."""
    may_have_run: bool = True
    """Without an exit code: whether the command may have started. If not, another shell can be tried."""


class Shell(Protocol):
    """A means to run a command on a node."""

    @property
    def name(self) -> str:
        """The name in settings."""

    def reaches(self, node: str) -> bool:
        """Whether the shell may be able to reach the node."""

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        """Run `argv` on the node; return within a few seconds of `timeout`. Raises nothing: a failure is an Answer."""


class Scheduler(Protocol):
    """Slurm. A method runs one or a few commands, each with a timeout, and never retries.

    Raises Unreachable if Slurm does not answer, SchedulerError if Slurm refuses, NotAllowed if the user lacks the
    permission. An interactive command ends within 12 s.
    """

    def jobs(self) -> list[Job]:
        """Return the whole queue, of every user, with the ended jobs that Slurm still remembers, in one query.

        A job that is not in the list is absent, which does not mean ended.
        """

    def past(self, ids: Sequence[str]) -> list[Job]:
        """Return every attempt of these jobs and arrays from accounting; empty without accounting."""

    def nodes(self) -> list[Node]:
        """Return every node."""

    def features(self) -> frozenset[str]:
        """Return the features of all nodes, which a job may ask for by --constraint."""

    def partitions(self) -> list[Partition]:
        """Return every partition that the user may see."""

    def reservations(self) -> list[Reservation]:
        """Return every reservation, including future ones."""

    def limits(self) -> Limits:
        """Return version, plugins and limits of this Slurm."""

    def accounting(self, user: str, cluster: str) -> Accounting | None:
        """Return the limits of `user` on `cluster`; None without accounting. Runs three commands."""

    def submit(self, plan: LaunchPlan, *, script: str, output: str) -> str:
        """Submit the wrapper at the path `script`, with `output` as the batch log; return the new array's id.

        After Unreachable the train may or may not be submitted: search the queue for the plan's comment before
        submitting again.
        """

    def hold(self, job: str) -> None:
        """Keep the queued tasks of an array, or a queued job, from starting. Idempotent."""

    def release(self, job: str) -> None:
        """Undo `hold`. Idempotent."""

    def cancel(self, job: str, *, queued_only: bool = False) -> None:
        """End an array, a task (`12_3`) or a job; with `queued_only`, spare running tasks. Idempotent."""

    def signal(self, job: str, name: str) -> None:
        """Send the signal `name` (such as TERM) to the job steps of a job, not to its batch script. Idempotent."""

    def exclude(self, job: str, nodes: str) -> None:
        """Replace the list of nodes that the queued tasks of `job` must not get."""

    def excluded(self, job: str) -> str:
        """Return the nodes that the queued tasks of `job` must not get, folded; empty without any."""

    def members(self, partition: str) -> list[str]:
        """Return the names of a partition's nodes; empty for a partition that does not exist."""

    def kinds(self) -> dict[str, str]:
        """Return the CPUs, memory and gres that the configuration gives each node, as text, by node."""

    def reasons(self) -> list[DrainReason]:
        """Return why nodes are out of service, since when, and the user who took each node out."""

    def drain(self, node: str, reason: str) -> None:
        """Give the node no new job; running jobs continue."""

    def resume(self, node: str) -> None:
        """Undo a drain, or put a node that is down back into service."""

    def reboot(self, node: str, reason: str) -> None:
        """Drain the node, reboot when the running jobs have ended, then resume the node."""

    def end_time(self, job: str) -> datetime | None:
        """Return the end of the running `job` by its current time limit; None without a limit."""


class Watchdog(Protocol[Context_contra, Target_contra, Observation]):
    """Monitors one thing of a train or of the site: a probe that reads, and a pure judge."""

    @property
    def name(self) -> str:
        """The name that users type."""

    @property
    def of(self) -> Literal["train", "site", "filesystem"]:
        """The kind of target: the watchdog runs once per train, site or file system."""

    @property
    def needs_slurm(self) -> bool:
        """Whether the watchdog is skipped while Slurm does not answer."""

    def probe(self, context: Context_contra, target: Target_contra) -> Observation:
        """Observe the target: read files, run programs. Slurm's snapshot is in the context. May raise or hang."""

    def judge(self, observation: Observation, now: datetime) -> list[Finding]:
        """Return the findings for an observation. Pure. Keys of findings start with `<name>/<target>`."""
