"""The directory of cron's files, `<root>/.site/cron`: the selected driver, and the history of entries and ticks."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from opsctl.base.errors import RunDirError
from opsctl.base.nodesets import hostname
from opsctl.host.processes import ProcessId
from opsctl.host.system import user_name
from opsctl.state.files import MAX_NUMBER_BYTES, Below, read_text, set_aside
from opsctl.state.records import HEADER, decode, encode, is_from_future, load_state, to_text
from opsctl.state.site_dir import SiteDir

EPOCH = datetime.fromtimestamp(0, UTC)
IN_CRON = "OPSCTL_CRON"
"""The variable that tells a command that no person has typed it."""
FORGET = timedelta(days=30)
"""Time for which a removed entry is remembered, in case the entry returns."""
MAX_TICKS = 50
"""Number of ticks remembered."""


@dataclass(frozen=True, slots=True)
class CronDir:
    """Properties are paths and read nothing."""

    site: SiteDir

    @property
    def path(self) -> Path:
        """The directory itself; a tick holds the lease."""
        return self.site.cron

    ledger = Below("ledger.json")
    output = Below("output")
    driver = Below("driver")
    """The driver's directory; a process that starts, stops or revives the driver holds the lease."""
    selected = Below("driver/wanted.json")
    """The file that names the selected driver; absent if no driver is selected."""

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    @property
    def is_ours(self) -> bool:
        return self.path.stat().st_uid == os.geteuid()

    def create(self) -> None:
        """Create the directories. Raises RunDirError, also if another user owns the directory."""
        if self.exists and not self.is_ours:
            raise RunDirError(
                f"{self.path}: belongs to {user_name(self.path.stat().st_uid)}, who runs cron for this site",
                hint="ask them, or choose another `root` in site.toml",
            )
        self.site.create()
        try:
            self.output.mkdir(exist_ok=True, mode=0o755)
            self.driver.mkdir(exist_ok=True, mode=0o755)
        except OSError as error:
            raise RunDirError(f"{self.path}: {error.strerror}", hint="check owner and free space") from error

    def touch(self, now: datetime) -> None:
        """Record that the tick is alive. A failure shows up as a missing tick."""
        with contextlib.suppress(RunDirError):
            self.site.write(self.site.last_tick, f"{now.timestamp():.0f}\n")

    def last_tick(self) -> datetime | None:
        """Return when a tick last recorded its activity; None if never."""
        try:
            return datetime.fromtimestamp(float(read_text(self.site.last_tick, MAX_NUMBER_BYTES)), UTC)
        except (OSError, ValueError, OverflowError):
            return None

    def is_overdue(self, every: int, now: datetime) -> bool:
        """Return whether this user selected a driver and no tick came for more than two intervals.

        Reads the state of two files only. A tick from the future does not count: it would hide all missing ticks.
        """
        try:
            status = self.selected.stat()
        except OSError:
            return False
        times = [datetime.fromtimestamp(status.st_mtime, UTC), self.last_tick() or EPOCH]
        since = max((time for time in times if not is_from_future(time, now)), default=EPOCH)
        return status.st_uid == os.geteuid() and (now - since).total_seconds() > 2 * every + min(120, every)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedDriver:
    """The driver that must run, as recorded by `opsctl cron start` and removed by `opsctl cron stop`.

    Any command that finds the recorded driver dead can start the driver again.
    """

    driver: str = ""
    """Empty if the file that names the driver cannot be read."""
    since: datetime = EPOCH
    by: str = ""
    host: str = ""
    pid: int = 0
    started: int = 0
    """Host, process id and start time of a daemon."""

    @property
    def process(self) -> ProcessId | None:
        """The daemon's process; None if the daemon runs on another host."""
        return ProcessId(pid=self.pid, started=self.started) if self.host == hostname() else None


def read_selected(cron_dir: CronDir) -> SelectedDriver | None:
    """Return the selected driver; None if no driver is selected."""
    try:
        return load_state(partial(decode, SelectedDriver), cron_dir.selected)
    except RunDirError:
        return SelectedDriver()


def write_selected(cron_dir: CronDir, selected: SelectedDriver) -> None:
    """Record the selected driver. Raises RunDirError."""
    cron_dir.site.write(cron_dir.selected, to_text(selected))


class EntryResult(StrEnum):
    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """Not run: not executable, or writable by other users."""
    UNKNOWN = "unknown"
    """Slurm did not answer: the script may or may not have been submitted."""
    RUNNING = "running"
    """Started. Without a running tick, the tick was killed during the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRun:
    since: datetime
    """The entry is due at the first scheduled time after this."""
    started: datetime | None = None
    seconds: float = 0.0
    result: EntryResult | None = None
    detail: str = ""
    """Such as `exit 3`, or the job that was submitted."""
    output: str = ""
    """Name of the output file, empty without output."""
    again: bool = False
    """Whether this run repeats one whose tick was killed; there is no third run."""

    @property
    def was_cut_off(self) -> bool:
        """Whether the tick was killed during the entry (unless a tick runs now) and the entry may run again."""
        return self.result is EntryResult.RUNNING and not self.again

    def due_since(self, now: datetime) -> datetime:
        """Return `since`, or `now` if a clock ahead wrote `since`: otherwise the entry would never run again."""
        return now if is_from_future(self.since, now) else self.since


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRun:
    at: datetime
    slot: datetime | None
    """Scheduled time of the tick, if the driver passed one."""
    by: str
    """Host and, under Slurm, job id."""
    seconds: float
    ran: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    entries: Mapping[str, EntryRun] = field(default_factory=dict)
    ticks: tuple[TickRun, ...] = ()
    """The newest last."""


def read_ledger(place: CronDir) -> RunHistory:
    """Return the time, duration and result of entries and ticks; empty if the file is missing or broken.

    Without a history no entry runs twice, and missed times are not made up.
    """
    try:
        return load_state(_parse_ledger, place.ledger) or RunHistory()
    except RunDirError:
        return RunHistory()


def _parse_ledger(content: Any) -> RunHistory:
    entries = {str(id): decode(EntryRun, fields) for id, fields in content["entries"].items()}
    return RunHistory(entries=entries, ticks=tuple(decode(TickRun, fields) for fields in content["ticks"]))


def write_ledger(place: CronDir, ledger: RunHistory) -> None:
    """Store the history, and keep one that cannot be read. Raises RunDirError."""
    try:
        load_state(_parse_ledger, place.ledger)
    except RunDirError:
        set_aside(place.ledger)
    entries = {id: encode(ran) for id, ran in ledger.entries.items()}
    content = {**HEADER, "entries": entries, "ticks": [encode(tick) for tick in ledger.ticks]}
    place.site.write(place.ledger, json.dumps(content, indent=1) + "\n")
