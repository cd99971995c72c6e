"""The driver that must run, as recorded by `opsctl cron start` and removed by `opsctl cron stop`.

Any command that finds the recorded driver dead can start the driver again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from opsctl.base.nodesets import hostname
from opsctl.cron.cron_dir import CronDir
from opsctl.host.processes import ProcessId
from opsctl.state.files import MAX_RECORD_BYTES, read_json
from opsctl.state.records import decode, to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedDriver:
    driver: str
    since: datetime
    by: str
    host: str = ""
    pid: int = 0
    started: int = 0
    """Host, process id and start time of a daemon."""

    @property
    def process(self) -> ProcessId | None:
        """The daemon's process; None if the daemon runs on another host."""
        return ProcessId(pid=self.pid, started=self.started) if self.host == hostname() else None


def read_selected(cron_dir: CronDir) -> SelectedDriver | None:
    """Return the selected driver; None if no driver is selected. Raises OSError, ValueError for a broken file."""
    try:
        return decode(SelectedDriver, read_json(cron_dir.selected, MAX_RECORD_BYTES))
    except FileNotFoundError:
        return None


def write_selected(cron_dir: CronDir, selected: SelectedDriver) -> None:
    """Record the selected driver. Raises RunDirError."""
    cron_dir.site.write(cron_dir.selected, to_text(selected))
