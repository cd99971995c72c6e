"""What is done while nobody looks, and by whom: `[cron]` of site.toml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from opsctl.settings.field_types import SbatchOption, SettingsTable, TimeZone, Word
from opsctl.units import parse_slurm_minutes

DriverName = Literal["slurm", "daemon", "export"]


def _check_minutes(minutes: int) -> int:
    if 60 % minutes:
        raise ValueError(f"{minutes} does not divide an hour: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30 or 60")
    return minutes


def _check_limit(text: str) -> str:
    if (parse_slurm_minutes(text) or 0) < 1:
        raise ValueError(f"{text!r} is not a time limit: minutes, MM:SS, HH:MM:SS or D-HH:MM:SS")
    return text


class CronSettings(SettingsTable):
    """`[cron]` of site.toml."""

    directory: str = Field("", description="your own crontab and cron.daily/ and so on, instead of what is shipped")
    drivers: tuple[DriverName, ...] = Field(
        ("slurm", "daemon"), min_length=1, description="what this site allows; `cron start` takes the first that works"
    )
    tick_minutes: Annotated[int, AfterValidator(_check_minutes)] = Field(
        10, ge=1, le=60, description="how often there is a tick; an entry runs at the first tick at or after its time"
    )
    tick_seconds: int = Field(
        0, ge=0, le=3600, description="for drills: the time between two ticks, instead of tick_minutes"
    )
    time_zone: TimeZone = Field("", description="of the crontab's hours; empty: the machine's, and nodes may differ")
    timeout_seconds: float = Field(300, gt=0, description="an entry that runs for longer is ended")
    keep_days: float = Field(7, gt=0, description="how long what entries printed is kept")
    keep_files: int = Field(2000, ge=1, description="and at most this many files of it, the newest")
    partition: Word = Field("", description="of the slurm driver, one without GPUs; empty: that of [slurm]")
    account: Word = Field("", description="empty: that of [slurm]")
    qos: Word = Field("", description="empty: that of [slurm]")
    memory: Word = Field("1G", description="what a tick may use, all entries together")
    time_limit: Annotated[str, AfterValidator(_check_limit)] = Field(
        "30", description="of one tick, as Slurm writes it"
    )
    extra: tuple[SbatchOption, ...] = Field((), description="further sbatch options, word for word")

    @property
    def every(self) -> int:
        """Seconds between two ticks."""
        return self.tick_seconds or self.tick_minutes * 60

    @property
    def limit_seconds(self) -> float:
        """The longest that a tick may take."""
        return (parse_slurm_minutes(self.time_limit) or 1) * 60.0

    def own_directory(self) -> Path | None:
        """The user's own, if one is named."""
        return Path(os.path.expandvars(self.directory)).expanduser().absolute() if self.directory else None
