"""The nouns, frozen: what Slurm has (Job, Node, Partition, …) and what we ask of it (JobSpec, Plan)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from opsctl.errors import InputError


class JobState(StrEnum):
    """The 24 states of squeue(1) and sacct(1), and UNKNOWN for any word that is not among them."""

    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    DEADLINE = "DEADLINE"
    FAILED = "FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PENDING = "PENDING"
    PREEMPTED = "PREEMPTED"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    RUNNING = "RUNNING"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    TIMEOUT = "TIMEOUT"
    UNKNOWN = "UNKNOWN"

    @property
    def is_waiting(self) -> bool:
        """It has no nodes yet and may get them: queued, held or to be queued again."""
        return self in _WAITING

    @property
    def is_final(self) -> bool:
        """It has ended and will not come back by itself. UNKNOWN is never an ending."""
        return self in _FINAL

    @property
    def is_active(self) -> bool:
        """It has nodes, or had them a moment ago and is still being cleaned up."""
        return not (self.is_waiting or self.is_final or self is JobState.UNKNOWN)


_WAITING = frozenset(
    {
        JobState.PENDING,
        JobState.REQUEUED,
        JobState.REQUEUE_FED,
        JobState.REQUEUE_HOLD,
        JobState.RESV_DEL_HOLD,
        JobState.SPECIAL_EXIT,
    }
)
_FINAL = frozenset(
    {
        JobState.BOOT_FAIL,
        JobState.CANCELLED,
        JobState.COMPLETED,
        JobState.DEADLINE,
        JobState.FAILED,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
        JobState.REVOKED,
        JobState.TIMEOUT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row of the queue: a plain job, a running array task, or all the waiting tasks of an array at once.

    Times carry a time zone; None where Slurm says N/A. Texts are Slurm's own words.
    """

    id: str
    """Slurm's own number for this row (an array task gets one of its own when it is split off)."""
    array: str
    """The array's id, the same as `id` for a plain job."""
    tasks: tuple[int, ...] = ()
    """The array indices that this row stands for; empty for a plain job, and once what waited was cancelled."""
    name: str
    user: str
    state: JobState
    reason: str = ""
    nodes: str = ""
    """A node list as Slurm folds it; empty while it waits."""
    node_count: int = 0
    partition: str = ""
    comment: str = ""
    start: datetime | None = None
    """When it started, or Slurm's estimate of when it will."""
    end: datetime | None = None
    submitted: datetime | None = None
    accrued: datetime | None = None
    """Since when its age counts, under priority/multifactor."""
    exit_code: str = ""
    """The exit code and the signal, such as `7:0` or `0:15`."""
    restarts: int = 0
    """How often it was requeued: the number of this attempt."""

    @property
    def full_id(self) -> str:
        """As Slurm shows it and takes it: `12_3` for a task of an array, else its own number."""
        return f"{self.array}_{self.tasks[0]}" if self.tasks else self.id

    @property
    def attempt(self) -> str:
        """The name of this attempt of it."""
        return f"{self.full_id}.{self.restarts}"

    @property
    def is_held(self) -> bool:
        """Nothing of it may start. Where tasks share one row, Slurm lists the reasons of them all."""
        return self.state.is_waiting and all(reason.startswith("JobHeld") for reason in self.reason.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as the controller sees it. `state` is Slurm's own word with its flags, such as `IDLE+DRAIN`."""

    name: str
    state: str
    address: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReason:
    """Why a node is out of service, as whoever took it out wrote it."""

    node: str
    text: str
    by: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What a partition lets a job be. None is no limit."""

    name: str
    is_default: bool
    is_up: bool
    nodes: int
    max_nodes: int | None
    max_minutes: int | None
    qos: str = ""
    """The QOS whose limits hold for whatever runs in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes that are kept for somebody, or for maintenance. Times carry a time zone."""

    name: str
    start: datetime | None
    end: datetime | None
    nodes: str
    """A node list as Slurm folds it."""
    node_count: int
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What this Slurm is and allows, from its own configuration."""

    version: str
    cluster: str
    max_array_size: int
    """One more than the largest array index."""
    priority: str
    """The priority plugin: under `priority/basic` a held job loses its place."""
    accounting: bool
    """Whether sacct and sacctmgr can answer."""
    enforced: tuple[str, ...] = ()
    """What of accounting binds jobs: `associations`, `limits`, `qos`, … (AccountingStorageEnforce)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service."""

    name: str
    flags: tuple[str, ...] = ()
    bounds: Mapping[str, int] = field(default_factory=dict)
    """By sacctmgr's names, with the resource where there is one: `MaxWall` (minutes), `MaxTRESPU node`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """What a user may do for an account; without a user, what everybody below an account may do."""

    account: str
    user: str = ""
    partition: str = ""
    """The only one that it is for."""
    parent: str = ""
    """The account above; a user's is his own account."""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    bounds: Mapping[str, int] = field(default_factory=dict)
    """As for a QOS. A user's own hold the accounts' above too, save for what begins with Grp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """What slurmdbd knows of what a user may do on this cluster."""

    default_account: str = ""
    associations: tuple[Association, ...] = ()
    """The user's, and those of accounts."""
    qos: tuple[Qos, ...] = ()

    @property
    def accounts(self) -> list[str]:
        """Those that the user may charge."""
        return sorted({association.account for association in self.associations if association.user})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What is asked of Slurm for one array train, from which the `#SBATCH` lines are made.

    Texts end up in directives, so they are refused if they could be read as more than one word.
    """

    name: str
    nodes: int
    processes_per_node: int
    cpus_per_process: int
    time_limit: str
    """As Slurm writes it: minutes, HH:MM:SS or D-HH:MM:SS."""
    tasks: int
    gpus_per_node: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    memory_per_node: str = ""
    exclusive: bool = False
    nice: int | None = None
    exclude: str = ""
    """A node list as Slurm folds it."""
    after: str = ""
    """Start when this job has ended, however it ended."""
    signal_seconds: int = 0
    """Send USR1 to the batch shell this long before the limit; 0 for no signal."""
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("name", "time_limit", "partition", "account", "qos", "reservation", "constraint",
                    "memory_per_node", "exclude", "after"):  # fmt: skip
            text = getattr(self, key)
            if any(c.isspace() or not c.isprintable() for c in text):
                raise InputError(f"{key} is {text!r}: white space would make it another #SBATCH directive")
        for option in self.extra:
            if not option.startswith("--") or not option.isprintable():
                raise InputError(f"extra sbatch option {option!r}: needs to be one line that starts with --")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A submission, complete and frozen: printed by a dry run, carried out by a real one."""

    train: str
    spec: JobSpec
    wrapper: str
    """The text that sbatch gets."""
    body: str
    """The text that the wrapper runs, and that may change until the next task starts."""
    nonce: str
    """Written into the job's comment, so that a submission that was cut off can be recognised."""

    @property
    def comment(self) -> str:
        return f"opsctl:{self.train}:{self.nonce}"


class Level(StrEnum):
    """How a thing is. UNKNOWN is neither good nor bad: we could not look."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The level of one thing now, as one watchdog judges it."""

    key: str
    """What it is about, the same each time: `<watchdog>/<train or site>[/<thing>]`, such as `hang/tiny-gpt`."""
    level: Level
    summary: str
    """One line, with the figures and the limit that they are held against."""
    train: str = ""
    node: str = ""
    evidence: tuple[str, ...] = ()
    """The lines that prove it."""
    done: tuple[str, ...] = ()
    """What opsctl did about it, if anything."""
    remedy: str = ""
    """What to type or do now."""
    is_certain: bool = False
    """It has happened, so that no second look is needed before people are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A thing's change from one level to another: the only thing that alerts are made from."""

    id: str
    """Names it for ever: message ids and deduplication keys are made from it."""
    finding: Finding
    before: Level
    at: datetime
