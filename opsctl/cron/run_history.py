"""What was run: when, how long, with what result. One file, replaced atomically by whoever holds the lease."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from opsctl.cron.cron_dir import CronDir

FORGET = timedelta(days=30)
"""An entry that was taken away is remembered for so long, should it come back."""
TICKS = 50
"""So many ticks are remembered."""


class EntryResult(StrEnum):
    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """It was not run: it is not executable, or others could have written it."""
    UNKNOWN = "unknown"
    """Slurm did not answer, so it may or may not have been submitted."""
    RUNNING = "running"
    """It has begun. If no tick is at work, the one that ran it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRun:
    """What became of one entry, the last time."""

    since: datetime
    """It is due at its first time after this."""
    started: datetime | None = None
    seconds: float = 0.0
    result: EntryResult | None = None
    detail: str = ""
    """Such as `exit 3`, or the job that was submitted."""
    output: str = ""
    """The file that has what it printed, if anything."""
    again: bool = False
    """It was begun before, by a tick that was killed: it is not begun a third time."""

    @property
    def was_cut_off(self) -> bool:
        """Its tick was killed, if no tick is at work, and it may be begun again."""
        return self.result is EntryResult.RUNNING and not self.again


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRun:
    """One tick that came."""

    at: datetime
    slot: datetime | None
    """When it was to come, if a driver said so."""
    by: str
    """The host and, under Slurm, the job."""
    seconds: float
    ran: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    entries: Mapping[str, EntryRun] = field(default_factory=dict)
    ticks: tuple[TickRun, ...] = ()
    """The newest last."""

    def with_entry(self, id: str, ran: EntryRun) -> RunHistory:
        return replace(self, entries={**self.entries, id: ran})

    def with_tick(self, tick: TickRun) -> RunHistory:
        return replace(self, ticks=(*self.ticks, tick)[-TICKS:])

    def without_stale(self, known: set[str], now: datetime) -> RunHistory:
        """Without what nobody has heard of for long."""
        entry_runs = {id: ran for id, ran in self.entries.items() if id in known or now - ran.since < FORGET}
        return replace(self, entries=entry_runs)


def read_ledger(place: CronDir) -> RunHistory:
    """What was written last; an empty one if there is none, or it cannot be understood.

    Without a ledger nothing is run twice, and nothing is caught up with.
    """
    try:
        given = json.loads(place.ledger.read_text())
        entries = {str(id): _ran(each) for id, each in given["entries"].items()}
        return RunHistory(entries=entries, ticks=tuple(_tick(each) for each in given["ticks"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return RunHistory()


def write_ledger(place: CronDir, ledger: RunHistory) -> None:
    """Raises RunDirError."""
    place.site.write(place.ledger, json.dumps(asdict(ledger), default=str, indent=1) + "\n")


def _ran(fields: dict[str, Any]) -> EntryRun:
    result = fields.get("result")
    times = {name: _time(fields.get(name)) for name in ("since", "started")}
    if times["since"] is None:
        raise ValueError("without a beginning")
    return EntryRun(**{**fields, **times, "result": EntryResult(result) if result else None})


def _tick(fields: dict[str, Any]) -> TickRun:
    return TickRun(
        **{
            **fields,
            "at": datetime.fromisoformat(fields["at"]),
            "slot": _time(fields["slot"]),
            "ran": tuple(fields["ran"]),
        }
    )


def _time(given: object) -> datetime | None:
    return datetime.fromisoformat(given) if isinstance(given, str) else None
