"""The shared nouns, all frozen: Slurm's (Job, Node, Partition, …), a submission (JobSpec, LaunchPlan), a Finding."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum

from opsctl.base.errors import InputError
from opsctl.base.tables import read_package_table


class JobState(StrEnum):
    """The 24 states in Slurm's manuals, and UNKNOWN for every other word."""

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
        """Whether the job has no nodes yet but may get some: queued, held or about to be requeued."""
        return self in _WAITING

    @property
    def is_final(self) -> bool:
        """Whether the job has ended and will not be requeued. UNKNOWN is not final."""
        return self in _FINAL

    @property
    def is_active(self) -> bool:
        """Whether the job has nodes, or Slurm is still cleaning up on them."""
        return not (self.is_waiting or self.is_final or self is JobState.UNKNOWN)


_STATES = read_package_table("base/job_states.toml")
_WAITING, _FINAL = (frozenset(map(JobState, _STATES[name])) for name in ("waiting", "final"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row of the queue: a plain job, a running array task, or all waiting tasks of an array together.

    Times carry a time zone and are None where Slurm prints N/A. Texts are Slurm's own words.
    """

    id: str
    """Slurm's number for this row. An array task gets its own number when Slurm splits the task off."""
    array: str
    """The array's id; equal to `id` for a plain job."""
    tasks: tuple[int, ...] = ()
    """The array indices of this row; empty for a plain job, and after the waiting tasks were cancelled."""
    name: str
    user: str
    state: JobState
    reason: str = ""
    nodes: str = ""
    """A folded node list; empty while the job waits."""
    node_count: int = 0
    partition: str = ""
    comment: str = ""
    start: datetime | None = None
    """The start, or Slurm's estimate of the start."""
    end: datetime | None = None
    submitted: datetime | None = None
    accrued: datetime | None = None
    """Start of the age that priority/multifactor counts."""
    exit_code: str = ""
    """The exit code and the signal, such as `7:0` or `0:15`."""
    restarts: int = 0
    """Number of requeues that Slurm has counted."""

    @property
    def full_id(self) -> str:
        """The id in Slurm's notation: `12_3` for a task of an array, else the job's number."""
        return f"{self.array}_{self.tasks[0]}" if self.tasks else self.id

    @property
    def is_held(self) -> bool:
        """Whether every waiting task of this row is held. For tasks in one row Slurm lists all their reasons."""
        return self.state.is_waiting and all(reason.startswith("JobHeld") for reason in self.reason.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as slurmctld reports it. `state` is Slurm's word with its flags, such as `IDLE+DRAIN`."""

    name: str
    state: str
    address: str
    reason: str = ""
    """Why the node is out of service; empty for a node in service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReason:
    """Why a node is out of service, since when, and the user who took the node out."""

    node: str
    text: str
    by: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition and its limits for one job. None means no limit."""

    name: str
    is_default: bool
    is_up: bool
    nodes: int
    max_nodes: int | None
    max_minutes: int | None
    qos: str = ""
    """The QOS whose limits apply to every job in the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes set aside for some users or for maintenance. Times carry a time zone."""

    name: str
    start: datetime | None
    end: datetime | None
    nodes: str
    """A folded node list."""
    node_count: int
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Version, plugins and limits of this Slurm, from its configuration."""

    version: str
    cluster: str
    max_array_size: int
    """One more than the largest array index."""
    priority: str
    """The priority plugin. Under `priority/basic` a held job loses its queue position."""
    accounting: bool
    """Whether Slurm's accounting can answer."""
    enforced: tuple[str, ...] = ()
    """The parts of accounting that Slurm enforces (AccountingStorageEnforce): `associations`, `limits`, `qos`, …"""
    has_epilog: bool = True
    """Whether nodes run an Epilog. Without it, Slurm keeps the nodes of a job for MessageTimeout after one died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service."""

    name: str
    flags: tuple[str, ...] = ()
    bounds: Mapping[str, int] = field(default_factory=dict)
    """Limits by Slurm's name, followed by the resource if any: `MaxWall` (minutes), `MaxTRESPU node`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """The limits of a user in an account; without a user, the limits of an account."""

    account: str
    user: str = ""
    partition: str = ""
    """The partition to which this association is restricted; empty for all partitions."""
    parent: str = ""
    """The parent account; for a user's association, the account itself."""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    bounds: Mapping[str, int] = field(default_factory=dict)
    """As for a QOS. A user's association includes the limits of the parent accounts, except those named Grp…."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """The associations and QOS that slurmdbd holds for a user on this cluster."""

    default_account: str = ""
    associations: tuple[Association, ...] = ()
    """Those of the user and those of accounts."""
    qos: tuple[Qos, ...] = ()

    @property
    def accounts(self) -> list[str]:
        """The accounts that the user may charge."""
        return sorted({association.account for association in self.associations if association.user})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The resources of one job array, from which the `#SBATCH` lines are rendered.

    Raises InputError for a text with white space, which would become a second word of a directive.
    """

    name: str
    nodes: int
    processes_per_node: int
    cpus_per_process: int
    time_limit: str
    """In Slurm's notation: minutes, HH:MM:SS or D-HH:MM:SS."""
    tasks: int
    spare_nodes: int = 0
    """Nodes beside `nodes` that replace lost and faulty ones."""
    survives_nodes: bool = False
    """Whether the job goes on when Slurm loses one of its nodes."""
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
    """A folded node list."""
    after: str = ""
    """Id of the job that must end before this one starts, with any outcome."""
    signal_seconds: int = 0
    """Slurm sends USR1 to the batch shell this long before the time limit; 0 for no signal."""
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, text in asdict(self).items():
            if isinstance(text, str) and any(char.isspace() or not char.isprintable() for char in text):
                raise InputError(f"{key}: {text!r} contains white space, which would start another #SBATCH option")
        for option in self.extra:
            if not option.startswith("--") or not option.isprintable():
                raise InputError(f"extra: {option!r} is not an #SBATCH option: one line that starts with --")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A complete submission, which a dry run prints and a real run carries out."""

    train: str
    spec: JobSpec
    wrapper: str
    """The submitted script, which Slurm keeps."""
    body: str
    """The script that the wrapper runs. The body may be edited until the next task starts."""
    nonce: str
    """Part of the job's comment, by which an interrupted submission is found in the queue."""

    @property
    def comment(self) -> str:
        """The job's comment: `opsctl:<train>:<nonce>`."""
        return f"opsctl:{self.train}:{self.nonce}"
