"""Which driver is to run, as `cron start` and `cron stop` leave it, so that whoever notices that
it does not run can start it again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime

from opsctl.cron.cron_dir import CronDir
from opsctl.host.processes import ProcessId
from opsctl.host.system import hostname


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedDriver:
    driver: str
    since: datetime
    by: str
    host: str = ""
    pid: int = 0
    started: int = 0
    """Of a daemon: its host and process."""

    @property
    def process(self) -> ProcessId | None:
        """The daemon's process, if it is one of this machine."""
        return ProcessId(pid=self.pid, started=self.started) if self.host == hostname() else None


def read_wanted(place: CronDir) -> SelectedDriver | None:
    """None if none is wanted. Raises OSError, and ValueError for a file that cannot be understood."""
    try:
        given = json.loads(place.wanted.read_text())
    except FileNotFoundError:
        return None
    try:
        return SelectedDriver(**{**given, "since": datetime.fromisoformat(given["since"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{place.wanted}: {error!r}") from error


def write_wanted(place: CronDir, wanted: SelectedDriver) -> None:
    """Raises RunDirError."""
    place.site.write(place.wanted, json.dumps(asdict(wanted), default=str) + "\n")
