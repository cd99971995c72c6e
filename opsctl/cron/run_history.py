"""The run history: time, duration and result of entries and ticks. One file, replaced atomically under the lease."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from opsctl.cron.cron_dir import CronDir
from opsctl.state.files import MAX_STATE_BYTES, read_json
from opsctl.state.records import HEADER, decode, encode
from opsctl.state.time_stamps import is_from_future

FORGET = timedelta(days=30)
"""Time for which a removed entry is remembered, in case the entry returns."""
MAX_TICKS = 50
"""Number of ticks remembered."""


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
    """Return the stored history; an empty one if the file is missing or broken.

    Without a history no entry runs twice, and missed times are not made up.
    """
    try:
        content = read_json(place.ledger, MAX_STATE_BYTES)
        entries = {str(id): decode(EntryRun, fields) for id, fields in content["entries"].items()}
        return RunHistory(entries=entries, ticks=tuple(decode(TickRun, fields) for fields in content["ticks"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return RunHistory()


def write_ledger(place: CronDir, ledger: RunHistory) -> None:
    """Store the history. Raises RunDirError."""
    entries = {id: encode(ran) for id, ran in ledger.entries.items()}
    content = {**HEADER, "entries": entries, "ticks": [encode(tick) for tick in ledger.ticks]}
    place.site.write(place.ledger, json.dumps(content, indent=1) + "\n")
