"""The thresholds of health checks and their defaults, with the standard library only.

`[health]` of site.toml (settings/health.py) takes its defaults from here. A prolog on a node reads the same table
without opsctl's dependencies: nodes/health/node_local.py.
"""

from dataclasses import dataclass

_OF_GPUS = ("clocks", "dcgm", "fabric", "nvlink", "pcie", "persistence", "processes", "recovery", "versions")
_OF_HOSTS = ("clock_skew", "fio", "host_settings", "infiniband", "kernel_log", "machine_checks", "memory", "nvme")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What the health checks read of `[health]`. settings/health.py describes every value."""

    gpus_per_node: int = 0
    memory_gib: float = 0
    nvlinks: int = 0
    ib_ports: int = 0
    ib_rate_gbps: float = 0
    ib_ignore: str = ""
    cpu_governor: str = ""
    mounts: tuple[str, ...] = ()
    mount_percent: float = 98
    shm_gib: float = 0
    shm_percent: float = 90
    xid_hours: float = 24
    xid_repeats: int = 3
    sram_corrected: int = 10_000
    dram_corrected: int = 20_000_000
    sram_uncorrected_ever: int = 4
    retired_pages: int = 60
    memory_corrected_per_day: int = 10
    clock_warn_seconds: float = 0.1
    clock_fail_seconds: float = 1.0
    stuck_seconds: float = 300
    fio_write_mib_s: float = 0
    fio_read_mib_s: float = 0
    section_seconds: float = 20
    user_uid_min: int = 1000
    may_be_unknown: tuple[str, ...] = tuple(sorted((*_OF_GPUS, *_OF_HOSTS, "temperature")))


DEFAULTS = Thresholds()
