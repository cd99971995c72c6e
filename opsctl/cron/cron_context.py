"""The input of ticks and drivers."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from tzlocal import get_localzone

from opsctl.base.ports import Clock
from opsctl.cron.cron_dir import IN_CRON, CronDir
from opsctl.cron.crontab import CronEntry, Schedule, read_schedule, shipped
from opsctl.settings.cron import CronSettings
from opsctl.slurm.job_environment import unset_slurm_variables
from opsctl.state.run_dir import check_trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class CronContext:
    place: CronDir
    settings: CronSettings
    clock: Clock
    env: Mapping[str, str]
    """Environment of the entries, before the crontab's own settings."""
    trust_parents: bool = False

    @property
    def zone(self) -> tzinfo:
        return find_zone(self.settings)

    @property
    def directory(self) -> Path:
        return self.settings.own_directory() or shipped()

    def schedule(self) -> Schedule:
        return read_schedule(self.directory, self.zone)

    def check_trusted(self, entry: CronEntry) -> None:
        """Refuse files that other users could have written; the shipped crontab is trusted. Raises RunDirError."""
        if self.settings.own_directory() is None:
            return
        root = self.directory if self.trust_parents else None
        check_trusted([entry.source], root=root)
        if entry.source.is_symlink():
            check_trusted([entry.source.resolve()], root=entry.source.resolve().parent if self.trust_parents else None)


def find_zone(settings: CronSettings) -> tzinfo:
    """Return the time zone of the crontab's hours."""
    return ZoneInfo(settings.time_zone) if settings.time_zone else get_localzone()


def entry_env(env: Mapping[str, str], entry: CronEntry) -> dict[str, str]:
    """Return the entry's environment: this opsctl first on PATH, without the variables of a surrounding job."""
    ours = {name: value for name, value in env.items() if name not in unset_slurm_variables(env)}
    path = entry.env.get("PATH") or env.get("PATH") or os.defpath
    return {**ours, **entry.env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}", IN_CRON: "1"}
