"""The nouns of health: what was seen of a node, what checks say of it, and what that makes of the node."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from opsctl.settings.health import HealthSettings


class Severity(StrEnum):
    """What one check says. Only FAULTY and DEGRADED are evidence against a node."""

    FAULTY = "faulty"
    DEGRADED = "degraded"
    NOTE = "note"
    UNKNOWN = "unknown"


class Health(StrEnum):
    """What all checks together say. UNKNOWN is neither healthy nor evidence."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Something that a check has to say. A check that has nothing to say found all well."""

    check: str
    severity: Severity
    evidence: str
    """One line, with the figures."""
    gpu: str = ""
    """The UUID of the card, where it is one card's."""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    node: str
    health: Health
    results: tuple[CheckResult, ...]
    at: datetime
    by: str
    """The way by which the node was reached."""

    @property
    def evidence(self) -> list[CheckResult]:
        """What speaks against the node, the worst first."""
        bad = [result for result in self.results if result.severity in {Severity.FAULTY, Severity.DEGRADED}]
        return sorted(bad, key=lambda result: result.severity is not Severity.FAULTY)

    @property
    def is_bad(self) -> bool:
        return self.health in {Health.FAULTY, Health.DEGRADED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one question to the node came to."""

    code: int | None
    """None if it was late."""
    out: str = ""
    err: str = ""

    @property
    def why(self) -> str:
        """Why it says nothing; empty if it ended well."""
        if self.code in {None, 124, 137}:
            return "did not answer in time"
        if self.code == 127:
            return "is not there"
        text = " ".join((self.err.strip() or self.out.strip()).split())
        return "" if self.code == 0 else f"exit code {self.code}" + (f": {text[:160]}" if text else "")


NONE = "none"
"""The version of a library that a node has not."""
NOT_ASKED = Section(code=1, err="was not asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    pid: int
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One card, as nvidia-smi has it. None is whatever it did not say: `N/A`, a field that its driver does not know."""

    uuid: str
    serial: str
    bus: str
    """As in `0000:10:1c`."""
    name: str = ""
    maker: str = "nvidia"
    """Or `amd`: what its tool never says is then not asked."""
    persistence: bool | None = None
    mig: bool | None = None
    ecc: dict[str, int] = field(default_factory=dict)
    """Such as `volatile.sram_uncorrectable`; only what is a number."""
    sram_threshold: bool | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    rows_used_up: int | None = None
    """Banks that have no spare row left."""
    reset_required: bool | None = None
    recovery: str | None = None
    clocks: frozenset[str] | None = None
    """The reasons that hold the clocks down, such as `hw_thermal_slowdown`."""
    temperature: int | None = None
    slow_at: int | None = None
    margin: int | None = None
    """Degrees left to the limit, which newer drivers say instead."""
    slow_margin: int | None = None
    power_limit: float | None = None
    default_power_limit: float | None = None
    width: int | None = None
    max_width: int | None = None
    replays: int | None = None
    use: int | None = None
    """Percent."""
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Smi:
    driver: str
    attached: int | None
    gpus: tuple[Gpu, ...]
    said: str = ""
    """What nvidia-smi printed around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    age: float | None
    """Seconds, or None where the line has no time."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcess:
    pid: int
    uid: int
    state: str
    age: float
    started: int
    """In the kernel's ticks since boot, which tells it from a later one with the same number."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of an InfiniBand or RoCE card."""

    state: str
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    path: str
    section: Section
    options: str | None = None
    """Of the mount itself; None where nothing is mounted at the path."""
    percent: int | None = None
    inode_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fio:
    """What fio measured of a file system: large blocks one after the other, then single small ones."""

    write_mib_s: float
    read_mib_s: float
    read_iops: float
    p99_ms: float | None
    """Of a small read."""
    is_direct: bool
    """Past the page cache; where it could not be, reading says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """Everything that was gathered of a node, parsed. What could not be read is None, never a guess."""

    node: str
    at: datetime
    by: str = ""
    problem: str = ""
    """Why nothing, or only a part, was gathered."""
    sections: dict[str, Section] = field(default_factory=dict)
    """How each question ended; without what it printed, which is parsed."""
    boot: str = ""
    uid: int | None = None
    """Who asked there."""
    in_job: bool = False
    """Gathered inside a job, which may see only its own GPUs."""
    skew: float | None = None
    """How far the node's clock is ahead of ours, in seconds; within `skew_error`."""
    skew_error: float = 0.0
    clock_offset: float | None = None
    """What the node's own time service says that it is off."""
    kernel_version: str = ""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of those that the system's linker finds."""
    memory_kb: int | None = None
    smi: Smi | None = None
    on_bus: int | None = None
    """GPUs on the PCI bus, which no job hides."""
    links: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By UUID: the NVLinks that are up."""
    links_down: dict[str, tuple[int, ...]] = field(default_factory=dict)
    link_errors: dict[str, int] = field(default_factory=dict)
    kernel: tuple[KernelLine, ...] | None = None
    shm_kb: int | None = None
    shm_percent: int | None = None
    processes: tuple[NodeProcess, ...] | None = None
    """Those of users, and those that are stuck or zombies."""
    ports: dict[str, Port] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    dcgm: tuple[tuple[str, str, str], ...] | None = None
    """Test, result, what it says."""
    fio: Fio | None = None

    def section(self, name: str) -> Section:
        return self.sections.get(name, NOT_ASKED)

    @property
    def gpu_tool(self) -> tuple[str, Section]:
        """What told of the cards, or should have."""
        has_amd = self.section("smi").code == 127 and "amd" in self.sections and self.section("amd").code != 127
        return ("amd-smi", self.section("amd")) if has_amd else ("nvidia-smi", self.section("smi"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBaseline:
    """What was known of a node before. Empty for one that was never seen."""

    at: datetime | None = None
    boot: str = ""
    uuids: tuple[str, ...] = ()
    memory_kb: int | None = None
    links: dict[str, tuple[int, ...]] = field(default_factory=dict)
    link_errors: dict[str, int] = field(default_factory=dict)
    replays: dict[str, int] = field(default_factory=dict)
    ports: dict[str, Port] = field(default_factory=dict)
    """Ports that have been active, with their counters at `ports_at`."""
    ports_at: datetime | None = None
    cleared: datetime | None = None
    """When it was put back into service: older lines of the kernel log are no evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInput:
    """What a node is held against."""

    site: HealthSettings = field(default_factory=HealthSettings)
    prior: NodeBaseline = NodeBaseline()
    busy: bool | None = None
    """Whether Slurm has a job there; None where nobody said."""
    driver: str = ""
    """The driver of most nodes that were looked at with it."""
    kernel_version: str = ""
    libraries: dict[str, str] = field(default_factory=dict)
    """As above."""
    lemons: dict[str, str] = field(default_factory=dict)
    """By UUID and by serial: what is held against a card."""
