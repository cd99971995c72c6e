"""What is known of the place where a train is to run. Gathered once (gather.py); checks get it as an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from opsctl.model import Accounting, Job, Limits, Node, Partition, Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What this Slurm is and allows, for whoever launches."""

    partitions: tuple[Partition, ...]
    limits: Limits
    nodes: tuple[Node, ...]
    accounting: Accounting | None = None
    """What the user may do; None where nobody keeps accounts, or nobody could say."""
    members: tuple[str, ...] = ()
    """The nodes of the partitions that are asked for."""
    jobs: tuple[Job, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    unasked: Mapping[str, str] = field(default_factory=dict)
    """What Slurm would not say, and why."""

    @property
    def accounts(self) -> list[str]:
        """Those that the user may charge, as far as that is known."""
        return self.accounting.accounts if self.accounting else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmedSwitch:
    """A switch that would stop the train as it starts."""

    switch: str
    by: str
    since: datetime
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSpace:
    """What is left where checkpoints go."""

    filesystem: str
    free: int
    """Bytes that can be relied upon."""
    inodes_free: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """One corpus in Megatron's indexed format, by its header."""

    prefix: str
    missing: tuple[str, ...] = ()
    problem: str = ""
    """Why it cannot be what it should be."""
    tokens: int | None = None
    width: int | None = None
    """Bytes of a token."""
    vocabulary: int | None = None
    """What it was tokenized with, where that was written down."""
    tokenizer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MisplacedPath:
    """A file that the command names, which is not there where the trainer starts."""

    path: str
    here: str = ""
    """The directory from which it would be there: that in which launch was typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """The newest complete checkpoint of the train, and how many there are."""

    step: int
    kind: str
    topology: Mapping[str, int | str]
    model: Mapping[str, Any]
    precision: str
    count: int = 1
    size: int = 0
    files: int = 0
    save_s: float = 0.0
    slowest_step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedNode:
    """A node as it was seen last."""

    node: str
    gpus: tuple[str, ...] = ()
    """Their names, as the driver has them."""
    driver: str = ""
    shm_kb: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Empty or None is what was not found out; `unknown` says why where it matters."""

    now: datetime
    user: str
    cluster: ClusterFacts | None = None
    switches: tuple[ArmedSwitch, ...] = ()
    room: FreeSpace | None = None
    corpora: tuple[CorpusFacts, ...] = ()
    tokenizers: Mapping[str, int | None] = field(default_factory=dict)
    """Tokens that each `tokenizer.json` knows, by its path; None for a file that does not say."""
    files: Mapping[str, bool] = field(default_factory=dict)
    """Whether files that the command names are there."""
    strays: tuple[MisplacedPath, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)
    """The text of shell scripts that the command names."""
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    """DeepSpeed's own settings, from the file that the command names."""
    seen: tuple[ObservedNode, ...] = ()
    gpu: str = ""
    """The kind of GPU that the train would get, as opsctl.calc.accelerators names it."""
    saved: SavedCheckpoint | None = None
    step_s: float | None = None
    """What a step took lately, by the train's own log."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What the trainer would run with, or ran with last: torch, nccl, …"""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What could not be looked at, and why."""
