"""The interfaces to clock, processes and nodes. `host/system.py` implements these contracts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol, TypeVar, runtime_checkable

from opsctl.base.findings import Finding

Context_contra = TypeVar("Context_contra", contravariant=True)
Target_contra = TypeVar("Target_contra", contravariant=True)
Observation = TypeVar("Observation")
WAYS_INSIDE_A_JOB = frozenset({"srun", "job"})
"""The values of `Answer.by` of commands that ran inside a job."""


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
    """The shell that ran the command, as in `remote.ways`."""
    code: int | None = None
    out: str = ""
    err: str = ""
    problem: str = ""
    """Why there is no exit code."""
    may_have_run: bool = True
    """Without an exit code: whether the command may have started. If not, another shell can be tried."""


Answers = dict[str, Answer]
"""By node."""


class _Route(Protocol):
    @property
    def name(self) -> str:
        """The name in settings."""

    def reaches(self, node: str) -> bool:
        """Whether the shell may be able to reach the node."""


class GroupShell(_Route, Protocol):
    def run_all(self, nodes: Sequence[str], argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answers:
        """Run `argv` on all nodes at the same time, as `NodeShell.run` does."""


@runtime_checkable
class NodeShell(_Route, Protocol):
    def run(self, node: str, argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
        """Run `argv` on the node; return within a few seconds of `timeout`. Raises nothing: a failure is an Answer."""


Shell = NodeShell | GroupShell
"""A means to run a command on nodes."""


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
