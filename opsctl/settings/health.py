"""How nodes are reached and held to be well: `[remote]` and `[health]` of site.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from opsctl.settings.field_types import Pattern, SettingsTable

Way = Literal["local", "srun", "job", "ssh"]


class RemoteSettings(SettingsTable):
    """`[remote]` of site.toml: how commands get to nodes."""

    ways: tuple[Way, ...] = Field(
        ("local", "srun", "job", "ssh"),
        min_length=1,
        description="tried in this order: this machine, a step in our own job, a short job on an idle node, ssh",
    )
    parallel: int = Field(32, ge=1, le=512, description="how many nodes are asked at once")
    connect_seconds: float = Field(10, gt=0, description="to reach a node, or to get a short job on it")
    user: str = Field("", description="for ssh; empty: ssh's own settings, else yours")
    ssh_config: str = Field("~/.ssh/config", description="read for HostName, Port, User, IdentityFile, ProxyJump")
    known_hosts: tuple[str, ...] = Field(
        ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts"),
        min_length=1,
        description="whose keys are believed; never asked",
    )
    accept_new: bool = Field(
        default=False, description="believe a node that was never seen, and remember its key; a changed key is refused"
    )
    jump: str = Field("", description="[user@]host[:port] to go through, where ssh_config names none")
    job_partition: str = Field("", description="of short jobs; empty: Slurm's default")
    job_minutes: int = Field(5, ge=1, description="the limit of a short job")


class HealthSettings(SettingsTable):
    """`[health]` of site.toml: what a node is held against. Where history knows better, history is taken."""

    gpus_per_node: int = Field(0, ge=0, description="0: what the node had before")
    memory_gib: float = Field(0, ge=0, description="a node with less has lost some; 0: what it had before")
    mounts: tuple[str, ...] = Field((), description="must be mounted and writable on every node")
    mount_percent: float = Field(98, gt=0, le=100, description="fuller is a finding")
    shm_gib: float = Field(0, ge=0, description="shared memory must be at least this large; 0: any size")
    shm_percent: float = Field(90, gt=0, le=100, description="shared memory fuller, on an idle node, is a leftover")
    xid_hours: float = Field(24, gt=0, description="older lines of the kernel log are no evidence")
    xid_repeats: int = Field(
        3, ge=2, description="how often an Xid that counts only when repeated must come, on one GPU"
    )
    sram_corrected: int = Field(10_000, ge=1, description="more than this since the driver was loaded is degraded")
    dram_corrected: int = Field(20_000_000, ge=1, description="as above")
    sram_uncorrected_ever: int = Field(
        4, ge=0, description="more than this over the card's attempt: it is to be replaced"
    )
    clock_warn_seconds: float = Field(
        0.1, gt=0, description="a note from here on, by what the node's own time service says it is off"
    )
    clock_fail_seconds: float = Field(1.0, gt=0, description="from here on the node is degraded")
    stuck_seconds: float = Field(300, gt=0, description="zombies and processes in D state older than this are findings")
    ib_ignore: Pattern = Field(
        "", description="device/port that match are not looked at, such as a management network's"
    )
    may_be_unknown: tuple[str, ...] = Field(
        ("clock_skew", "clocks", "dcgm", "fio", "infiniband", "memory", "nvlink", "pcie", "persistence", "processes",
         "recovery", "temperature", "versions"),
        description="checks without which a node can still be healthy; where GPUs have no ECC or are cut by MIG, add "
        "ecc and remapped_rows",
    )  # fmt: skip
    fio_mib: int = Field(
        256, ge=1, le=65_536, description="the size of the file that `health --fio` writes on each node"
    )
    fio_seconds: float = Field(60, gt=0, le=600, description="how long all of that may take")
    fio_write_mib_s: float = Field(0, ge=0, description="slower is degraded; 0: any speed")
    fio_read_mib_s: float = Field(0, ge=0, description="as above")
    section_seconds: float = Field(20, gt=0, le=300, description="how long each question to a node may take")
    drain: Literal["try", "never"] = Field("try", description="never: exclude from trains and report instead")
    drain_max: int = Field(4, ge=1, description="opsctl never has more nodes than this out of service at once")
    drain_percent: float = Field(5, gt=0, le=100, description="nor a larger share of them; one is always allowed")
    exclude_hours: float = Field(72, gt=0, description="how long trains are kept from a node, where we may not drain")
    undrain_reasons: tuple[str, ...] = Field(
        ("Kill task failed",), description="others' reasons that may be taken back from nodes that are free again"
    )
    undrain_gap_seconds: float = Field(60, ge=0, description="between the two looks that a node has to pass")
    user_uid_min: int = Field(1000, ge=1, description="processes of lower user ids are the system's")
    lemon_score: float = Field(6, gt=0, description="from here on a node or card is called a lemon")
    lemon_days: float = Field(28, gt=0, description="older incidents count no more")
