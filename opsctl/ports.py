"""The seams: what the rest needs of the world, and nothing more. `system.py` and `scheduler/` keep these contracts."""

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
        """The time now, in UTC."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A program that ran to its end. A non-zero exit is data."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str


class TimedOut(Exception):
    """A program that did not end in time and was killed. What it had done by then is unknown."""

    def __init__(self, argv: Sequence[str], timeout: float) -> None:
        super().__init__(f"{argv[0]} did not answer within {timeout:g} s")
        self.argv = tuple(argv)


class Flooded(TimedOut):
    """A program that printed more than anybody could want, and was killed."""

    def __init__(self, argv: Sequence[str], most: int) -> None:
        Exception.__init__(self, f"{argv[0]} printed more than {most >> 20} MiB and was ended")
        self.argv = tuple(argv)


class Runner(Protocol):
    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: str = "", env: Mapping[str, str | None] | None = None
    ) -> Completed:
        """Run `argv`, without a shell. A missing program raises MissingProgram, a late one TimedOut (and is killed).

        One that prints without end raises Flooded, which is a TimedOut. What hangs in the kernel is left behind.

        `env` is laid over the environment; None takes a name out of it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a command on a node. Without a code it did not run to its end, and nothing follows from it."""

    node: str
    by: str
    """The way it went: `local`, `srun`, `job`, `ssh`."""
    code: int | None = None
    out: str = ""
    err: str = ""
    problem: str = ""
    """Why there is no code."""
    may_have_run: bool = True
    """Without a code: whether it may have begun. If not, another way can be tried."""


class Shell(Protocol):
    """One way to run a command on a node."""

    @property
    def name(self) -> str:
        """As settings name it."""

    def reaches(self, node: str) -> bool:
        """Whether it is worth trying there."""

    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        """Run `argv` there; back within a few seconds of `timeout`. Raises nothing: a failure is an Answer."""


class Scheduler(Protocol):
    """Slurm. Each call is one command with a timeout; Unreachable when Slurm does not answer, SchedulerError when it
    refuses, NotAllowed when it refuses because of who asks. Nothing here retries: an interactive verb ends within 12 s.
    """

    def jobs(self) -> list[Job]:
        """Everything in the queue, of every user, in one question; also what has ended and is still remembered.

        What is not in it is absent, which is no ending.
        """

    def past(self, ids: Sequence[str]) -> list[Job]:
        """What accounting remembers of these jobs and arrays, every attempt of them; empty where there is none."""

    def nodes(self) -> list[Node]:
        """Every node."""

    def partitions(self) -> list[Partition]:
        """Every partition that this user may see."""

    def reservations(self) -> list[Reservation]:
        """Every reservation, those to come too."""

    def limits(self) -> Limits:
        """What this Slurm allows."""

    def accounting(self, user: str, cluster: str) -> Accounting | None:
        """What `user` may do on `cluster`, or None where nobody keeps accounts. Three commands."""

    def submit(self, plan: LaunchPlan, *, script: str, output: str) -> str:
        """Submit the wrapper at the path `script`, with `output` as the batch log; the new array's id.

        Unreachable means that it is unknown whether it was submitted: look for the plan's comment before trying again.
        """

    def hold(self, job: str) -> None:
        """Keep what is queued of this array or job from starting. Idempotent."""

    def release(self, job: str) -> None:
        """Let it start again. Idempotent."""

    def cancel(self, job: str, *, queued_only: bool = False) -> None:
        """End an array, a task (`12_3`) or a job; with `queued_only` leave alone what runs. Idempotent."""

    def exclude(self, job: str, nodes: str) -> None:
        """Set (not add to) the nodes that the queued tasks of `job` must not get."""

    def excluded(self, job: str) -> str:
        """The node list that the queued tasks of `job` must not get now; empty if there is none."""

    def members(self, partition: str) -> list[str]:
        """The names of a partition's nodes; empty for one that is not there."""

    def reasons(self) -> list[DrainReason]:
        """Why nodes are out of service, by whom and since when."""

    def drain(self, node: str, reason: str) -> None:
        """Give it no new job; what runs there goes on."""

    def resume(self, node: str) -> None:
        """Take a drain or a down back."""

    def reboot(self, node: str, reason: str) -> None:
        """Give it no new job, boot it anew when what runs there has ended, and then put it back into service."""

    def end_time(self, job: str) -> datetime | None:
        """When the running `job` will be ended by its time limit, as it stands now; None if it has none."""


class Watchdog(Protocol[Context_contra, Target_contra, Observation]):
    """Looks at one thing of a train or of the site, and judges it."""

    @property
    def name(self) -> str:
        """As people type it."""

    @property
    def of(self) -> Literal["train", "site", "filesystem"]:
        """What it looks at one by one."""

    @property
    def needs_slurm(self) -> bool:
        """It is not asked while Slurm does not answer."""

    def probe(self, context: Context_contra, target: Target_contra) -> Observation:
        """Look at it. May read files and run programs; what Slurm says is in the scene. May raise, or take for ever."""

    def judge(self, observation: Observation, now: datetime) -> list[Finding]:
        """What that means: touches nothing. Keys of findings begin with `<name>/`, then what was looked at."""
