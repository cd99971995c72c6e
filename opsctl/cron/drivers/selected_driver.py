"""The driver that must run, as recorded by `opsctl cron start` and removed by `opsctl cron stop`.

Any command that finds the recorded driver dead can start the driver again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime

from opsctl.base.nodesets import hostname
from opsctl.cron.cron_dir import CronDir
from opsctl.host.processes import ProcessId
from opsctl.state.files import MAX_RECORD_BYTES, read_json


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
        fields = read_json(cron_dir.selected, MAX_RECORD_BYTES)
    except FileNotFoundError:
        return None
    try:
        return SelectedDriver(**{**fields, "since": datetime.fromisoformat(fields["since"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{cron_dir.selected}: {error!r}") from error


def write_selected(cron_dir: CronDir, selected: SelectedDriver) -> None:
    """Record the selected driver. Raises RunDirError."""
    cron_dir.site.write(cron_dir.selected, json.dumps(asdict(selected), default=str) + "\n")
