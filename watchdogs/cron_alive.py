"""A scheduler tick that did not come. Whoever looks: a person, another cron, a watcher in tmux."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from opsctl.cron.cron_dir import CronDir
from opsctl.model import Finding, Level
from opsctl.state.site_dir import SiteDir
from opsctl.watchdogs.context import WatchContext


@dataclass(frozen=True, slots=True, kw_only=True)
class TickObservation:
    is_selected: bool
    """Somebody has started a driver, and nobody has stopped it."""
    last: datetime | None
    limit: timedelta


class CronAlive:
    name: ClassVar[str] = "cron_alive"
    of: ClassVar[Literal["site"]] = "site"
    needs_slurm: ClassVar[bool] = False

    def probe(self, scene: WatchContext, thing: None) -> TickObservation:
        place = CronDir(SiteDir(scene.site_dir))
        minutes = max(scene.site.watch.cron_minutes, 3 * scene.site.cron.every / 60)
        return TickObservation(is_selected=place.wanted.exists(), last=place.ticked(), limit=timedelta(minutes=minutes))

    def judge(self, seen: TickObservation, now: datetime) -> list[Finding]:
        level, summary = Level.OK, "cron: nobody has started it here"
        if seen.last is not None:
            minutes = (now - seen.last).total_seconds() / 60
            summary = f"cron: last tick {minutes:.0f} min ago"
            # A tick within the limit ahead of us is another host's clock.
            if seen.is_selected and now - seen.last > seen.limit:
                level, limit = Level.CRITICAL, seen.limit.total_seconds() / 60
                summary = f"cron: no tick for {minutes:.0f} min (limit {limit:.0f} min)"
        elif seen.is_selected:
            level, summary = Level.WARNING, "cron: it was started, and has not ticked yet"
        remedy = "opsctl cron status; opsctl cron start" if level is not Level.OK else ""
        return [Finding(key=f"{self.name}/site", level=level, summary=summary, remedy=remedy)]
