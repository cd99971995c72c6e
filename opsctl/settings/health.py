"""Remote shells and thresholds of health checks: `[remote]` and `[health]` of site.toml."""

from dataclasses import fields
from typing import Literal

from pydantic import Field

from opsctl.settings.field_types import Pattern, SettingsTable
from opsctl.settings.thresholds import DEFAULTS, Thresholds

Way = Literal["local", "srun", "job", "ssh"]


class RemoteSettings(SettingsTable):
    """`[remote]` of site.toml: how commands are run on nodes."""

    ways: tuple[Way, ...] = Field(
        ("local", "srun", "job", "ssh"),
        min_length=1,
        description="shells, in order: this machine, a step in your running job, a short job on an idle node, ssh",
    )
    parallel: int = Field(32, ge=1, le=512, description="number of nodes contacted by ssh at the same time")
    connect_seconds: float = Field(
        10, gt=0, description="seconds to wait for a connection, or for a short job to start"
    )
    user: str = Field("", description="user name for ssh; empty: from ssh_config, else yours")
    ssh_config: str = Field(
        "~/.ssh/config", description="ssh configuration; HostName, Port, User, IdentityFile and ProxyJump are used"
    )
    known_hosts: tuple[str, ...] = Field(
        ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"),
        min_length=1,
        description="files of trusted host keys; opsctl never asks",
    )
    accept_new: bool = Field(
        default=False, description="trust and store the key of a new host; a changed key is always refused"
    )
    jump: str = Field("", description="jump host as [user@]host[:port], if ssh_config has no ProxyJump")
    job_partition: str = Field("", description="partition of short jobs; empty: Slurm's default")
    job_minutes: int = Field(5, ge=1, description="time limit of a short job, in minutes")


class PolicySettings(SettingsTable):
    """`[policy]` of site.toml: what opsctl does by itself, and what it only proposes. All that would act asks here."""

    exclude: Literal["act", "propose"] = Field("act", description="keep a node that a failure is blamed on from trains")
    drain: Literal["act", "propose"] = Field("act", description="drain such a node if its health check has failed")
    hold: Literal["act", "propose"] = Field("act", description="hold the queued tasks of a train that does not get on")
    cancel: Literal["act", "propose"] = Field("act", description="cancel the queued tasks of a training that is over")


class HealthSettings(SettingsTable):
    """`[health]` of site.toml: thresholds of health checks.

    A value of 0 or unset is learnt: from the node's history, and from the majority of the nodes of its kind.
    """

    gpus_per_node: int = Field(
        DEFAULTS.gpus_per_node, ge=0, description="GPUs expected in a node; 0: as many as before"
    )
    memory_gib: float = Field(DEFAULTS.memory_gib, ge=0, description="memory expected in a node; 0: as much as before")
    nvlinks: int = Field(
        DEFAULTS.nvlinks, ge=0, description="active NVLinks expected on every GPU; 0: as many as before"
    )
    ib_ports: int = Field(
        DEFAULTS.ib_ports, ge=0, description="active InfiniBand or RoCE ports expected in a node; 0: as many as before"
    )
    ib_rate_gbps: float = Field(
        DEFAULTS.ib_rate_gbps, ge=0, description="rate expected of an active port, in Gb/s; 0: as fast as before"
    )
    cpu_governor: str = Field(
        DEFAULTS.cpu_governor, description="cpufreq governor expected on every CPU; empty: that of most nodes"
    )
    mounts: tuple[str, ...] = Field(
        DEFAULTS.mounts, description="paths that must be mounted and writable on every node"
    )
    mount_percent: float = Field(
        DEFAULTS.mount_percent, gt=0, le=100, description="usage of a mount above which the node is degraded"
    )
    shm_gib: float = Field(DEFAULTS.shm_gib, ge=0, description="smallest size of shared memory; 0: any size")
    shm_percent: float = Field(
        DEFAULTS.shm_percent,
        gt=0,
        le=100,
        description="usage of shared memory on an idle node above which files are left over from a job",
    )
    xid_hours: float = Field(
        DEFAULTS.xid_hours, gt=0, description="hours for which lines of the kernel log count as evidence"
    )
    xid_repeats: int = Field(
        DEFAULTS.xid_repeats, ge=2, description="occurrences on one GPU from which on a repeatable Xid counts"
    )
    sram_corrected: int = Field(
        DEFAULTS.sram_corrected,
        ge=1,
        description="corrected SRAM errors since the driver was loaded above which a GPU is degraded",
    )
    dram_corrected: int = Field(DEFAULTS.dram_corrected, ge=1, description="the same for DRAM")
    sram_uncorrected_ever: int = Field(
        DEFAULTS.sram_uncorrected_ever,
        ge=0,
        description="uncorrected SRAM errors since manufacture above which a GPU must be replaced",
    )
    retired_pages: int = Field(
        DEFAULTS.retired_pages,
        ge=1,
        description="retired memory pages from which on a GPU must be replaced (Volta, Turing)",
    )
    memory_corrected_per_day: int = Field(
        DEFAULTS.memory_corrected_per_day,
        ge=0,
        description="corrected errors of host memory a day above which a note is made",
    )
    clock_warn_seconds: float = Field(
        DEFAULTS.clock_warn_seconds,
        gt=0,
        description="clock offset from which on a note is made, as reported by the node's time service",
    )
    clock_fail_seconds: float = Field(
        DEFAULTS.clock_fail_seconds, gt=0, description="clock offset from which on the node is degraded"
    )
    stuck_seconds: float = Field(
        DEFAULTS.stuck_seconds, gt=0, description="age above which zombies and processes in D state are reported"
    )
    ib_ignore: Pattern = Field(
        DEFAULTS.ib_ignore, description="pattern of device/port to ignore, such as a management network"
    )
    may_be_unknown: tuple[str, ...] = Field(
        DEFAULTS.may_be_unknown,
        description="checks that may be unknown on a healthy node; with MIG, add remapped_rows",
    )
    fio_mib: int = Field(
        256, ge=1, le=65_536, description="size of the file that `opsctl health --fio` writes on every node"
    )
    fio_seconds: float = Field(60, gt=0, le=600, description="time limit of the fio check")
    fio_write_mib_s: float = Field(
        DEFAULTS.fio_write_mib_s, ge=0, description="write speed below which a node is degraded; 0: any speed"
    )
    fio_read_mib_s: float = Field(
        DEFAULTS.fio_read_mib_s, ge=0, description="read speed below which a node is degraded; 0: any speed"
    )
    section_seconds: float = Field(
        DEFAULTS.section_seconds, gt=0, le=300, description="time limit of one section of the node check"
    )
    drain: Literal["try", "never"] = Field(
        "try", description="try: drain bad nodes where allowed; never: exclude them from trains and write a report"
    )
    drain_max: int = Field(4, ge=1, description="largest number of nodes that opsctl takes out of service at once")
    drain_percent: float = Field(
        5,
        gt=0,
        le=100,
        description="largest share of nodes that opsctl takes out of service at once; one node is always allowed",
    )
    exclude_hours: float = Field(
        72, gt=0, description="hours for which a node is excluded from trains, where drain is not permitted"
    )
    exclude_per_day: int = Field(
        4, ge=1, description="nodes excluded in 24 hours from which on the end of an attempt excludes no more"
    )
    undrain_reasons: tuple[str, ...] = Field(
        ("Kill task failed",),
        description="drain reasons, not set by opsctl, from which a healthy node may be resumed; `*` ends a beginning",
    )
    undrain_gap_seconds: float = Field(
        60, ge=0, description="seconds between the two health checks that a node must pass before undrain"
    )
    user_uid_min: int = Field(
        DEFAULTS.user_uid_min,
        ge=1,
        description="lowest user id of ordinary users; processes of lower ids belong to the system",
    )
    lemon_score: float = Field(6, gt=0, description="flakiness score from which on a node or GPU is called a lemon")
    lemon_days: float = Field(28, gt=0, description="days for which an incident counts in the flakiness score")

    @property
    def thresholds(self) -> Thresholds:
        """Return what the checks read of this table."""
        return Thresholds(**{field.name: getattr(self, field.name) for field in fields(Thresholds)})
