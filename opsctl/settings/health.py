"""Remote shells and thresholds of health checks: `[remote]` and `[health]` of site.toml."""

from dataclasses import fields
from typing import Literal

from pydantic import Field

from opsctl.settings.field_types import Pattern, SettingsTable
from opsctl.settings.thresholds import DEFAULTS, Thresholds

Way = Literal["local", "srun", "job", "ssh"]


class RemoteSettings(SettingsTable):
    """`[remote]` of site.toml: how commands are run on nodes."""

    ways: tuple[Way, ...] = Field(("local", "srun", "job", "ssh"), min_length=1)
    parallel: int = Field(32, ge=1, le=512)
    connect_seconds: float = Field(10, gt=0)
    user: str = ""
    ssh_config: str = "~/.ssh/config"
    known_hosts: tuple[str, ...] = Field(("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"), min_length=1)
    accept_new: bool = False
    jump: str = ""
    job_partition: str = ""
    job_minutes: int = Field(5, ge=1)


class PolicySettings(SettingsTable):
    """`[policy]` of site.toml: what opsctl does by itself, and what it only proposes. All that would act asks here."""

    exclude: Literal["act", "propose"] = "act"
    drain: Literal["act", "propose"] = "act"
    hold: Literal["act", "propose"] = "act"
    cancel: Literal["act", "propose"] = "act"


class HealthSettings(SettingsTable):
    """`[health]` of site.toml: thresholds of health checks.

    A value of 0 or unset is learnt: from the node's history, and from the majority of the nodes of its kind.
    """

    gpus_per_node: int = Field(DEFAULTS.gpus_per_node, ge=0)
    memory_gib: float = Field(DEFAULTS.memory_gib, ge=0)
    nvlinks: int = Field(DEFAULTS.nvlinks, ge=0)
    ib_ports: int = Field(DEFAULTS.ib_ports, ge=0)
    ib_rate_gbps: float = Field(DEFAULTS.ib_rate_gbps, ge=0)
    cpu_governor: str = DEFAULTS.cpu_governor
    mounts: tuple[str, ...] = DEFAULTS.mounts
    mount_percent: float = Field(DEFAULTS.mount_percent, gt=0, le=100)
    shm_gib: float = Field(DEFAULTS.shm_gib, ge=0)
    shm_percent: float = Field(DEFAULTS.shm_percent, gt=0, le=100)
    xid_hours: float = Field(DEFAULTS.xid_hours, gt=0)
    xid_repeats: int = Field(DEFAULTS.xid_repeats, ge=2)
    sram_corrected: int = Field(DEFAULTS.sram_corrected, ge=1)
    dram_corrected: int = Field(DEFAULTS.dram_corrected, ge=1)
    sram_uncorrected_ever: int = Field(DEFAULTS.sram_uncorrected_ever, ge=0)
    retired_pages: int = Field(DEFAULTS.retired_pages, ge=1)
    memory_corrected_per_day: int = Field(DEFAULTS.memory_corrected_per_day, ge=0)
    clock_warn_seconds: float = Field(DEFAULTS.clock_warn_seconds, gt=0)
    clock_fail_seconds: float = Field(DEFAULTS.clock_fail_seconds, gt=0)
    stuck_seconds: float = Field(DEFAULTS.stuck_seconds, gt=0)
    ib_ignore: Pattern = DEFAULTS.ib_ignore
    may_be_unknown: tuple[str, ...] = DEFAULTS.may_be_unknown
    fio_mib: int = Field(256, ge=1, le=65_536)
    fio_seconds: float = Field(60, gt=0, le=600)
    fio_write_mib_s: float = Field(DEFAULTS.fio_write_mib_s, ge=0)
    fio_read_mib_s: float = Field(DEFAULTS.fio_read_mib_s, ge=0)
    section_seconds: float = Field(DEFAULTS.section_seconds, gt=0, le=300)
    drain: Literal["try", "never"] = "try"
    drain_max: int = Field(4, ge=1)
    drain_percent: float = Field(5, gt=0, le=100)
    exclude_hours: float = Field(72, gt=0)
    exclude_per_day: int = Field(4, ge=1)
    undrain_reasons: tuple[str, ...] = ("Kill task failed",)
    undrain_gap_seconds: float = Field(60, ge=0)
    user_uid_min: int = Field(DEFAULTS.user_uid_min, ge=1)
    flaky_score: float = Field(6, gt=0)
    flaky_days: float = Field(28, gt=0)

    @property
    def thresholds(self) -> Thresholds:
        """Return what the checks read of this table."""
        return Thresholds(**{field.name: getattr(self, field.name) for field in fields(Thresholds)})
