"""Missing cron ticks, noticed by any other watch cycle: of a person, of another cron, of a watcher in tmux."""

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
    """Whether a driver was started and not stopped."""
    last: datetime | None
    limit: timedelta


class CronAlive:
    name: ClassVar[str] = "cron_alive"
    of: ClassVar[Literal["site"]] = "site"
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: None) -> TickObservation:
        place = CronDir(SiteDir(context.site_dir))
        minutes = max(context.site.watch.cron_minutes, 3 * context.site.cron.every / 60)
        return TickObservation(
            is_selected=place.selected.exists(), last=place.last_tick(), limit=timedelta(minutes=minutes)
        )

    def judge(self, observation: TickObservation, now: datetime) -> list[Finding]:
        level, summary = Level.OK, "cron: not started"
        if observation.last is not None:
            minutes = (now - observation.last).total_seconds() / 60
            summary = f"cron: last tick {minutes:.0f} min ago"
            # A tick in the future comes from another host's clock.
            if observation.is_selected and now - observation.last > observation.limit:
                level, limit = Level.CRITICAL, observation.limit.total_seconds() / 60
                summary = f"cron: no tick for {minutes:.0f} min (limit {limit:.0f} min)"
        elif observation.is_selected:
            level, summary = Level.WARNING, "cron: started, but no tick yet"
        remedy = "opsctl cron status; opsctl cron start" if level is not Level.OK else ""
        return [Finding(key=f"{self.name}/site", level=level, summary=summary, remedy=remedy)]
