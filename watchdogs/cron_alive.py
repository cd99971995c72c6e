"""Missing cron ticks and watch cycles, noticed by any other watch cycle: of a person, of another cron, in tmux."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from opsctl.base.findings import Finding, Severity
from opsctl.base.statements import NO_REMEDY, Statement, advise, state, type_now
from opsctl.cron.cron_dir import CronDir, EntryResult, EntryRun, read_ledger
from opsctl.settings.cron import CronSettings
from opsctl.state.records import date_by_first_sight
from opsctl.state.site_dir import SiteDir
from opsctl.watchdogs.context import WatchContext

WATCH_COMMAND = re.compile(r"\bopsctl\b.*\bwatch\b", re.ASCII)
"""An entry of the crontab that runs watch cycles."""
FAILURES = frozenset({EntryResult.FAILED, EntryResult.TIMEOUT, EntryResult.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TickObservation:
    is_selected: bool
    """Whether a driver was started and not stopped."""
    last: datetime | None
    limit: timedelta
    watch_entries: tuple[tuple[str, EntryRun], ...] = ()
    """The entries that run watch cycles, with their last runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickMemory:
    """Stamps from the future, and when they were first read: of the last tick, and of the entries' runs."""

    tick: tuple[str, ...] = ()
    entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class CronAlive:
    name: ClassVar[str] = "cron_alive"
    of: ClassVar[Literal["site"]] = "site"
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: None) -> TickObservation:
        place = CronDir(SiteDir(context.site_dir))
        before = context.memory.recall(TickMemory, self.name, "site")
        minutes = max(context.site.watch.cron_minutes, 3 * context.site.cron.every / 60)
        last = place.last_tick()
        tick: tuple[str, ...] = ()
        if last is not None:
            last, tick = date_by_first_sight(last, context.now, before.tick)
        runs = {id: ran for id, ran in read_ledger(place).entries.items() if WATCH_COMMAND.search(id)}
        entries: dict[str, tuple[str, ...]] = {}
        for id, ran in runs.items():
            since, entries[id] = date_by_first_sight(ran.since, context.now, before.entries.get(id, ()))
            runs[id] = replace(ran, since=since)
        context.memory.remember(self.name, "site", TickMemory(tick=tick, entries=entries))
        observation = TickObservation(
            is_selected=place.selected.exists(),
            last=last,
            limit=timedelta(minutes=minutes),
            watch_entries=tuple(sorted(runs.items())),
        )
        if _find_watch_problem(observation, context.now):
            listed = _list_entries(context.site.cron)
            known = tuple((id, ran) for id, ran in observation.watch_entries if id in listed)
            observation = replace(observation, watch_entries=known)
        return observation

    def judge(self, observation: TickObservation, now: datetime) -> list[Finding]:
        severity, says = Severity.OK, state("cron.not_started")
        remedy = advise("remedy.cron", ("opsctl", "cron", "status"), ("opsctl", "cron", "start"))
        if observation.last is not None:
            age = now - observation.last
            minutes = {"age_min": age.total_seconds() / 60, "limit_min": observation.limit.total_seconds() / 60}
            says = state("cron.alive", **minutes)
            if observation.is_selected and age > observation.limit:
                severity, says = Severity.CRITICAL, state("cron.late", **minutes)
            elif observation.is_selected and (problem := _find_watch_problem(observation, now)):
                (severity, says), remedy = problem, type_now(("opsctl", "cron", "status"))
        elif observation.is_selected:
            severity, says = Severity.WARNING, state("cron.no_tick")
        fix = remedy if severity is not Severity.OK else NO_REMEDY
        return [Finding(key=f"{self.name}/site", severity=severity, says=says, since=observation.last, fix=fix)]


def _list_entries(settings: CronSettings) -> set[str]:
    """Return the ids of the entries in the crontab: the ledger remembers removed entries for a month."""
    from opsctl.cron.cron_context import find_zone  # noqa: PLC0415 (imports APScheduler)
    from opsctl.cron.crontab import read_schedule, shipped  # noqa: PLC0415 (imports APScheduler)

    schedule = read_schedule(settings.own_directory() or shipped(), find_zone(settings))
    return {entry.id for entry in schedule.entries}


def _find_watch_problem(observation: TickObservation, now: datetime) -> tuple[Severity, Statement] | None:
    """Return why no watch cycle runs although ticks come: then nothing is watched and nothing is sent."""
    entries = observation.watch_entries
    if entries and all(now - ran.since > observation.limit for _, ran in entries):
        id, ran = max(entries, key=lambda entry: entry[1].since)
        return Severity.CRITICAL, state("cron.no_watch", entry=id, since=ran.since)
    for id, ran in entries:
        if ran.result in FAILURES:
            return Severity.WARNING, state("cron.watch_failed", entry=id, result=ran.result, detail=ran.detail)
    return None
