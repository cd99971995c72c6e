"""Facts about the cluster and the files of a train, gathered once (gather_facts.py) and passed to every check."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from opsctl.base.model import Accounting, Job, Limits, Node, Partition, Reservation
from opsctl.nodes.history import NodeRecord
from opsctl.preflight.shared_saves import SharedSave
from opsctl.state.switches import Armed
from opsctl.trainer.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Slurm's nodes, partitions and limits for this user."""

    partitions: tuple[Partition, ...]
    limits: Limits
    nodes: tuple[Node, ...]
    accounting: Accounting | None = None
    """The user's accounts and limits; None without accounting, or if accounting does not answer."""
    features: frozenset[str] = frozenset()
    """The features of all nodes; empty if the train asks for none, or if Slurm reports none."""
    members: tuple[str, ...] = ()
    """The nodes of the train's partitions."""
    jobs: tuple[Job, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Facts that Slurm did not return, and why."""

    @property
    def accounts(self) -> list[str]:
        """The accounts that the user may use; empty if unknown."""
        return self.accounting.accounts if self.accounting else []


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSpace:
    """Free space where checkpoints are written."""

    filesystem: str
    free: int
    """Reliably free bytes."""
    inodes_free: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """One corpus in Megatron's indexed format, from its header."""

    prefix: str
    missing: tuple[str, ...] = ()
    problem: str = ""
    """Why the files are invalid; empty if they are valid."""
    tokens: int | None = None
    width: int | None = None
    """Bytes per token."""
    vocabulary: int | None = None
    """Vocabulary size of the corpus's tokenizer, if recorded."""
    tokenizer: str = ""
    packed: int | None = None
    """Tokens of a sequence of packed conversations; None for text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MisplacedPath:
    """A file of the command that does not exist in the trainer's start directory."""

    path: str
    here: str = ""
    """The directory of the launch, if the file exists there."""
    origin: str = "command"
    """The setting that names the file."""
    is_needed: bool = False
    """Whether the command cannot start without the file, and nothing in [setup] can make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts. Empty or None means unknown; `unknown` holds the reasons that matter."""

    now: datetime
    user: str
    cluster: ClusterFacts | None = None
    switches: tuple[Armed, ...] = ()
    """The switches that would stop the train at its start."""
    free_space: FreeSpace | None = None
    corpora: tuple[CorpusFacts, ...] = ()
    weights_problem: str = ""
    """Why the run cannot begin with the weights that it names; empty if it can."""
    tokenizers: Mapping[str, int | None] = field(default_factory=dict)
    """Number of tokens in each `tokenizer.json`, by path; None if the file has no vocabulary."""
    files: Mapping[str, bool] = field(default_factory=dict)
    """Whether the files of the command exist."""
    unseen: frozenset[str] = frozenset()
    """Paths whose directory does not exist on this machine: compute nodes may have it."""
    misplaced_paths: tuple[MisplacedPath, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)
    """Text of the shell scripts of the command, by path."""
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    """DeepSpeed's settings, if a script writes them into a file."""
    observed_nodes: tuple[NodeRecord, ...] = ()
    """The nodes that the train may get, as opsctl health last saw them."""
    processor_without_bf16: str = ""
    """The processor of this machine, if it has no bf16 instructions."""
    gpu: str = ""
    """The kind of GPU that the train would get, by its name in opsctl.calc.accelerators."""
    saved: Manifest | None = None
    """The newest complete checkpoint of the train."""
    saved_count: int = 0
    """The number of complete checkpoints."""
    shared_saves: tuple[SharedSave, ...] = ()
    """Directories of checkpoints that another train in the queue uses as well."""
    step_s: float | None = None
    """Recent step time, from the train's log."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of torch, nccl and others that the trainer would use, or used last."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Facts that could not be gathered, and why."""
