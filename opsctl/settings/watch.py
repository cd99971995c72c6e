"""What watchdogs hold things against: `[watch]` and `[[filesystem]]` of site.toml, `[watch]` of TRAIN.toml."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from opsctl.settings.field_types import Pattern, SettingsTable, Size

QUOTA_GROUPS = frozenset({"used", "limit", "percent", "inodes_used", "inodes_limit", "inodes_percent", "at"})
"""What a quota command's pattern may name."""


class WatchSettings(SettingsTable):
    """`[watch]` of site.toml: what holds for every train."""

    timeout_seconds: float = Field(
        60, gt=0, description="a watchdog that takes longer is left behind, and what it looks at is unknown"
    )
    clock_tolerance_seconds: float = Field(
        120, ge=0, description="clocks of nodes differ by no more than this: ages within it say nothing"
    )
    exclusive_allocation_minutes: float | None = Field(
        None,
        ge=0,
        description="nodes are ours alone, so waiting longer is wrong; 0: any wait; unset: they are not ours alone",
    )
    blocked_minutes: float = Field(
        30,
        ge=0,
        description="a wait for a partition that is down, a limit of the account and the like is a warning after this",
    )
    held_hours: float = Field(
        12, gt=0, description="a train held or paused for longer is a warning; for twice as long, critical"
    )
    pulse_minutes: float = Field(10, ge=0, description="at most one PULSE line in this time, unless something changed")
    cron_minutes: float = Field(30, gt=0, description="a scheduler whose last tick is older than this is dead")


class Filesystem(SettingsTable):
    """`[[filesystem]]` of site.toml: one place that must not become full."""

    name: str = Field(min_length=1, description="what alerts call it")
    path: str = Field(description="a directory on it; with `du`, the directory that is measured")
    by: Literal["statvfs", "df", "du", "command"] = Field(
        "statvfs", description="how it is measured; `du` runs in the background, `command` is the site's quota program"
    )
    command: tuple[str, ...] = Field((), description="word by word, with by = command")
    pattern: Pattern = Field(
        "",
        description=f"finds the figures in what the command prints, by named groups: {', '.join(sorted(QUOTA_GROUPS))}",
    )
    limit: Size | None = Field(None, description="bytes that may be used, where the system does not say (du)")
    inode_limit: Size | None = Field(None, description="inodes that may be used, where the system does not say (du)")
    reliable_percent: float = Field(
        100, gt=0, le=100, description="the share that can be used before single disks are full: 80 on some systems"
    )
    warning_percent: float = Field(85, gt=0, le=100, description="of bytes or inodes: fuller is a warning")
    critical_percent: float = Field(95, gt=0, le=100, description="fuller is critical")
    free: Size = Field(0, description="less than this free is critical")
    warning_hours: float = Field(
        72, ge=0, description="a warning where it will be full within this, at the rate of the trains"
    )
    critical_hours: float = Field(24, ge=0, description="the same, for critical")
    stale_minutes: float = Field(
        60, gt=0, description="figures that have not moved for this long, though something was written, are stale"
    )
    every_minutes: float = Field(1440, gt=0, description="how often du measures")

    @model_validator(mode="after")
    def _makes_sense(self) -> Filesystem:
        problems = []
        if self.by == "command" and not (self.command and self.pattern):
            problems.append("by = command needs `command` and `pattern`")
        if unknown := set(re.compile(self.pattern).groupindex) - QUOTA_GROUPS:
            problems.append(f"pattern: no such group: {', '.join(sorted(unknown))}")
        if self.by == "du" and not (self.limit or self.inode_limit):
            problems.append("by = du needs `limit` or `inode_limit`: du knows what is used, not what may be")
        if self.critical_percent < self.warning_percent:
            problems.append("critical_percent is below warning_percent")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class TrainWatchSettings(SettingsTable):
    """`[watch]` of TRAIN.toml: this train's own limits. What is left out is learnt from the run itself."""

    off: tuple[str, ...] = Field((), description="watchdogs that do not look at this train")
    also_jobs: tuple[Pattern, ...] = Field(
        (),
        description="patterns of whole names of jobs that count as this train's though opsctl did not launch them",
    )
    hang_minutes: float | None = Field(None, gt=0, description="no progress for this long is a hang; unset: learnt")
    init_minutes: float = Field(60, gt=0, description="from the job's start to its first step, before it is a hang")
    hang_cancels: bool = Field(
        default=False, description="cancel a hung task, once its stacks are kept, so that the next one starts"
    )
    stacks_seconds: float = Field(10, ge=0, le=50, description="how long to wait for the ranks' stacks")
    py_spy: str = Field(
        "", description="the path of py-spy on the nodes, to be run on every rank by srun --overlap; empty: not run"
    )
    checkpoint_hours: float | None = Field(
        None, gt=0, description="no checkpoint for this long is a warning; unset: learnt"
    )
    slower_percent: float = Field(5, gt=0, lt=100, description="this much slower than its own median is a warning")
