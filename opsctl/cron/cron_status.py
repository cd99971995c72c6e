"""The status of cron, from files only."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from opsctl.base.errors import OpsctlError
from opsctl.cron.cron_context import CronContext
from opsctl.cron.cron_dir import EntryResult, EntryRun, read_ledger
from opsctl.cron.crontab import CronEntry
from opsctl.cron.drivers.daemon import alive, describe

ALIVE_S = 60.0
"""A running tick records its activity more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryStatus:
    id: str
    when: str
    started: datetime | None
    seconds: float
    result: str
    """Empty if the entry has not run yet; `cut off` if the tick was killed during the entry."""
    detail: str
    output: str
    next: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CronStatus:
    driver: str
    """The selected driver in words; empty if no driver is selected."""
    last_tick: datetime | None
    is_overdue: bool
    every: int
    directory: str
    ticks: int
    """Number of ticks in the ledger."""
    entries: tuple[EntryStatus, ...]
    problems: tuple[str, ...]
    """Invalid lines and refused entries."""


def read_cron_status(cron: CronContext) -> CronStatus:
    """Return the status of cron, without calling Slurm."""
    now, ledger, schedule, wanted = cron.clock.now(), read_ledger(cron.place), cron.schedule(), alive(cron)
    last = cron.place.last_tick()
    works = last is not None and abs(now - last).total_seconds() < ALIVE_S
    return CronStatus(
        driver=describe(wanted) if wanted else "",
        last_tick=last,
        is_overdue=cron.place.is_overdue(cron.settings.every, now),
        every=cron.settings.every,
        directory=str(cron.directory),
        ticks=len(ledger.ticks),
        entries=tuple(
            _entry(entry, ledger.entries.get(entry.id, EntryRun(since=now)), now=now, works=works)
            for entry in schedule.entries
        ),
        problems=(*schedule.problems, *_refused(cron, schedule.entries)),
    )


def _refused(cron: CronContext, entries: tuple[CronEntry, ...]) -> Iterator[str]:
    """Return one line per entry that a tick would refuse, before the entry is due."""
    for entry in entries:
        try:
            cron.check_trusted(entry)
        except OpsctlError as error:
            yield f"{entry.id}: {error.message}"
        else:
            if entry.refused:
                yield f"{entry.id}: {entry.refused}"


def _entry(entry: CronEntry, ran: EntryRun, *, now: datetime, works: bool) -> EntryStatus:
    result = "cut off" if ran.result is EntryResult.RUNNING and not works else str(ran.result or "")
    return EntryStatus(
        id=entry.id,
        when=entry.when.text,
        started=ran.started,
        seconds=ran.seconds,
        result=result,
        detail=ran.detail,
        output=ran.output,
        next=entry.when.after(ran.due_since(now)),
    )
