"""The data of a health check: what was gathered, what the checks found, and the verdict on the node."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from enum import StrEnum

from opsctl.settings.thresholds import DEFAULTS, Thresholds


class CheckSeverity(StrEnum):
    """The severity of a check result. Only FAULTY and DEGRADED are evidence against a node."""

    FAULTY = "faulty"
    DEGRADED = "degraded"
    NOTE = "note"
    UNKNOWN = "unknown"


class Health(StrEnum):
    """The health of a node, from all checks. UNKNOWN is neither healthy nor evidence."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One result of a check. A check without results found no problem."""

    severity: CheckSeverity
    evidence: str
    """One line, with the figures."""
    remedy: str = ""
    _: KW_ONLY
    gpu: str = ""
    """UUID of the affected GPU; empty for the whole node."""
    check: str = ""
    """The name in CHECKS, which `judge` fills in, or the name that a row of kernel_log.toml has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    node: str
    health: Health
    results: tuple[CheckResult, ...]
    at: datetime
    by: str
    """The route by which the node was reached, as in `remote.ways`."""
    saw_gpus: bool = True
    """Whether the check saw a GPU. A check that saw none says nothing about GPUs."""

    @property
    def evidence(self) -> list[CheckResult]:
        """Return the faulty and degraded results, the worst first."""
        bad = [result for result in self.results if result.severity in {CheckSeverity.FAULTY, CheckSeverity.DEGRADED}]
        return sorted(bad, key=lambda result: result.severity is not CheckSeverity.FAULTY)

    @property
    def is_bad(self) -> bool:
        return self.health in {Health.FAULTY, Health.DEGRADED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """How one section of the gathering script ended."""

    code: int | None
    """Exit code; None if the section exceeded its time limit."""
    out: str = ""
    err: str = ""

    @property
    def why(self) -> str:
        """Return why the section has no data; an empty string for success."""
        if self.code in {None, 124, 137}:
            return "did not answer in time"
        if self.code == 127:
            return "is not installed"
        if self.code == 0:
            return ""
        text = " ".join((self.err.strip() or self.out.strip()).split())
        return f"exit code {self.code}" + (f": {text[:MAX_ERROR_CHARS]}" if text else "")


MAX_ERROR_CHARS = 160
NONE = "none"
"""The version of a library that a node lacks."""
NOT_GATHERED = Section(code=1, err="was not gathered")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    pid: int
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as nvidia-smi or amd-smi reports. A value that the tool does not report is None."""

    uuid: str
    serial: str
    bus: str
    """As in `0000:10:1c`."""
    name: str = ""
    maker: str = "nvidia"
    """`nvidia` or `amd`. Values that amd-smi never reports are not checked."""
    persistence: bool | None = None
    mig: bool | None = None
    ecc_mode: str = ""
    """`enabled`, `disabled`, or `n/a` for a card without ECC; empty if the tool does not report the mode."""
    ecc: dict[str, int] = field(default_factory=dict)
    """Error counts by name, such as `volatile.sram_uncorrectable`."""
    sram_threshold: bool | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    rows_used_up: int | None = None
    """Banks that have no spare row left."""
    retired_pages: int | None = None
    """Pages of memory that Volta and Turing took out of use; None on cards that remap rows."""
    retirement_pending: bool | None = None
    fabric_state: str | None = None
    """Registration with the fabric manager, such as `Completed`; None for a card without NVSwitch."""
    fabric_status: str | None = None
    reset_required: bool | None = None
    recovery: str | None = None
    clocks: frozenset[str] | None = None
    """Active clock event reasons, such as `hw_thermal_slowdown`."""
    temperature_c: int | None = None
    slowdown_c: int | None = None
    """Temperature from which on the GPU slows down."""
    margin_c: int | None = None
    """Degrees below the limit; newer drivers report the margin instead of the limit."""
    slowdown_margin_c: int | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    pcie_lanes: int | None = None
    max_pcie_lanes: int | None = None
    replays: int | None = None
    """PCIe replays since driver load."""
    use_percent: int | None = None
    processes: tuple[GpuProcess, ...] = ()

    @property
    def has_no_ecc(self) -> bool:
        """Return whether the tool says that the card lacks ECC or has ECC switched off."""
        return self.ecc_mode in {"n/a", "disabled"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Smi:
    driver: str
    attached: int | None
    gpus: tuple[Gpu, ...]
    messages: str = ""
    """Text that nvidia-smi printed before and after the XML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    age_s: float | None
    """None for a line without a time."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcess:
    pid: int
    uid: int
    state: str
    age_s: float
    start_ticks: int
    """Start time in kernel ticks since boot. A later process with the same PID has another start time."""
    name: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.name}, uid {self.uid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of an InfiniBand or RoCE card."""

    state: str
    counters: dict[str, int] = field(default_factory=dict)
    rate_gbps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    path: str
    section: Section
    options: str | None = None
    """Mount options; None if nothing is mounted at the path."""
    percent: int | None = None
    inode_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fio:
    """fio's measurement of a file system: sequential large blocks, then random small reads."""

    write_mib_s: float
    read_mib_s: float
    read_iops: float
    p99_ms: float | None
    """99th percentile of the latency of a small read."""
    is_direct: bool
    """True without the page cache. With the page cache, read speeds are no evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What /sys says about a node. Empty values are unknown."""

    cpus: str = ""
    """Number and model of the CPUs, such as `64 AMD EPYC 7543`."""
    product: str = ""
    gpu_models: tuple[str, ...] = ()
    """PCI identifiers of the models of the GPUs on the bus, each once."""
    clocksource: str = ""
    governors: dict[str, int] = field(default_factory=dict)
    """Number of CPUs by cpufreq governor."""
    lustre: str = ""
    """Lustre's own health check; empty without Lustre."""
    corrected_memory: dict[str, int] = field(default_factory=dict)
    """Corrected errors of host memory since boot, by memory controller (`mc0`) and module (`mc0/dimm3`)."""
    uncorrected_memory: dict[str, int] = field(default_factory=dict)
    pcie_errors: dict[str, dict[str, int]] = field(default_factory=dict)
    """Error totals since boot by PCI device, then by kind: `correctable`, `nonfatal`, `fatal`. Zeros are missing."""
    disks: dict[str, str] = field(default_factory=dict)
    """States of NVMe disks, such as `live`."""
    nvswitches: int = 0
    fabric_service: str = ""
    """State of the service nvidia-fabricmanager; empty without systemd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLog:
    critical_warning: int
    """A bit mask: NVM Express Base Specification, SMART / Health Information."""
    used_percent: int | None = None
    media_errors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """The parsed data of one node. Unreadable values are None."""

    node: str
    at: datetime
    by: str = ""
    problem: str = ""
    """Why data is missing; empty for complete data."""
    sections: dict[str, Section] = field(default_factory=dict)
    """How every section ended, without the parsed output."""
    boot: str = ""
    uid: int | None = None
    """User ID under which the script ran."""
    in_job: bool = False
    """True inside a job, which may see only its own GPUs."""
    skew_s: float | None = None
    """Time by which the node's clock is ahead of this machine's clock, within `skew_error_s`."""
    skew_error_s: float = 0.0
    clock_offset_s: float | None = None
    """Clock offset, as the node's time service reports."""
    kernel_version: str = ""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of the libraries that the node's linker finds."""
    memory_kb: int | None = None
    smi: Smi | None = None
    on_bus: int | None = None
    """GPUs on the PCI bus, including GPUs hidden from the job."""
    links: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """NVLinks that are up, by GPU UUID."""
    links_down: dict[str, tuple[int, ...]] = field(default_factory=dict)
    link_errors: dict[str, int] = field(default_factory=dict)
    kernel: tuple[KernelLine, ...] | None = None
    shm_kb: int | None = None
    shm_percent: int | None = None
    processes: tuple[NodeProcess, ...] | None = None
    """Processes of users, and stuck or zombie processes."""
    ports: dict[str, Port] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    uptime_s: float | None = None
    hardware: Hardware | None = None
    disk_logs: dict[str, DiskLog] = field(default_factory=dict)
    """SMART logs by NVMe disk, which only root may read."""
    dcgm: tuple[tuple[str, str, str], ...] | None = None
    """Test, result and message."""
    fio: Fio | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.smi.gpus if self.smi else ()

    def user_processes(self, min_uid: int) -> list[NodeProcess]:
        """Return the processes of users from this uid on, without zombies."""
        return [process for process in self.processes or () if process.uid >= min_uid and process.state not in "ZX"]

    def section(self, name: str) -> Section:
        return self.sections.get(name, NOT_GATHERED)

    @property
    def gpu_tool(self) -> tuple[str, Section]:
        """Return the GPU tool of the node and its section; nvidia-smi if the node has none."""
        has_amd = self.section("smi").code == 127 and "amd" in self.sections and self.section("amd").code != 127
        return ("amd-smi", self.section("amd")) if has_amd else ("nvidia-smi", self.section("smi"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A GPU, as a node's history names it."""

    uuid: str
    serial: str = ""
    bus: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBaseline:
    """Expected values of a node, from earlier checks. Empty for a new node. Times are Unix times."""

    boot: str = ""
    cards: tuple[Card, ...] = ()
    memory_kb: int | None = None
    links: dict[str, tuple[int, ...]] = field(default_factory=dict)
    link_errors: dict[str, int] = field(default_factory=dict)
    replays: dict[str, int] = field(default_factory=dict)
    ports: dict[str, Port] = field(default_factory=dict)
    """Ports that have been active, with their counters at `ports_at`."""
    ports_at: float | None = None
    cleared: float | None = None
    """When the node was put back into service. Older lines of the kernel log are no evidence."""

    def cleared_s(self, now: datetime) -> float:
        """Return for how long the node has been back in service; infinite if it was never put back."""
        return math.inf if self.cleared is None else now.timestamp() - self.cleared


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What the other nodes of a node's kind have."""

    values: Mapping[str, float] = field(default_factory=dict)
    """The value that the majority has, by name."""
    undecided: Mapping[str, str] = field(default_factory=dict)
    """Values without a majority of which another node has more, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInput:
    """The expected values against which a node is checked."""

    site: Thresholds = DEFAULTS
    prior: NodeBaseline = NodeBaseline()
    busy: bool | None = None
    """Whether Slurm has a job on the node; None for unknown."""
    driver: str = ""
    """The most frequent driver of the nodes of this check."""
    kernel_version: str = ""
    libraries: dict[str, str] = field(default_factory=dict)
    """The most frequent versions, as above."""
    governor: str = ""
    """The most frequent cpufreq governor, as above."""
    usual: Usual = Usual()
    flaky_gpus: dict[str, str] = field(default_factory=dict)
    """Summaries of flaky GPUs, by UUID and by serial number."""
