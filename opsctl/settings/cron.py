"""Periodic jobs and the drivers that run them: `[cron]` of site.toml."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from opsctl.base.units import parse_slurm_minutes
from opsctl.settings.field_types import SbatchOption, SettingsTable, TimeZone, Word, must

DriverName = Literal["slurm", "daemon", "export"]


Minutes = Annotated[
    int,
    must(
        lambda minutes: 60 % minutes == 0,
        "{} does not divide an hour; allowed: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30 or 60",
    ),
]
TickLimit = Annotated[
    str, must(parse_slurm_minutes, "{!r} is not a time limit: minutes, MM:SS, HH:MM:SS or D-HH:MM:SS")
]


class CronSettings(SettingsTable):
    """`[cron]` of site.toml."""

    directory: str = ""
    drivers: tuple[DriverName, ...] = Field(("slurm", "daemon"), min_length=1)
    tick_minutes: Minutes = Field(10, ge=1, le=60)
    tick_seconds: int = Field(0, ge=0, le=3600)
    time_zone: TimeZone = ""
    timeout_seconds: float = Field(300, gt=0)
    keep_days: float = Field(7, gt=0)
    keep_files: int = Field(2000, ge=1)
    partition: Word = ""
    account: Word = ""
    qos: Word = ""
    memory: Word = "1G"
    time_limit: TickLimit = "30"
    extra: tuple[SbatchOption, ...] = ()

    @property
    def every(self) -> int:
        """Seconds between ticks."""
        return self.tick_seconds or self.tick_minutes * 60

    @property
    def limit_seconds(self) -> float:
        """The time limit of a tick, in seconds."""
        return (parse_slurm_minutes(self.time_limit) or 1) * 60.0

    def own_directory(self) -> Path | None:
        """Return the user's own directory of entries, if configured."""
        return Path(os.path.expandvars(self.directory)).expanduser().absolute() if self.directory else None
