"""Who is told of what, and when."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

from opsctl.alerts.ledger_state import SEVERITY, AlertTransition, Thread
from opsctl.model import Level, Transition
from opsctl.settings.alerts import AlertSettings, ChannelTable, FileTable, RouteTable, parse_hours
from opsctl.state.site_dir import SiteDir

BUILT_IN = "log"
"""The channel of a site that has none."""


def select_channels(rules: AlertSettings, site: SiteDir) -> dict[str, ChannelTable]:
    """The site's channels, by name."""
    return dict(rules.channels) or {BUILT_IN: FileTable(kind="file", path=str(site.alerts / "alerts.log"))}


def severity(transition: Transition) -> Level:
    """How bad it is or was: who was told that it is bad is told that it is over. Unknown for long is as a warning."""
    worst = max(transition.before, transition.finding.level, key=lambda level: SEVERITY[level])
    return Level.CRITICAL if worst is Level.CRITICAL else Level.WARNING


def find_destinations(
    noted: AlertTransition, rules: AlertSettings, known: Iterable[str], thread: Thread | None
) -> dict[str, datetime | None]:
    """The channels that are to have it, each with the end of the quiet hours that it waits for, if it does.

    A channel that was told of the incident is told how it goes on, whatever the routes say.
    """
    known = list(known)
    moments: dict[str, datetime | None] = {}
    for route in rules.routes:
        if _takes(route, noted.transition):
            when = _when(route, noted.transition, rules.time_zone)
            moments |= {name: sooner(when, moments.get(name, when)) for name in route.channels}
    followed = dict.fromkeys((name for name in thread.roots if name in known) if thread else (), None)
    return followed | (moments if rules.routes else dict.fromkeys(known, None))


def find_fallback(rules: AlertSettings, known: Iterable[str], failed: str, tried: Iterable[str]) -> str | None:
    """The channel to try instead of `failed`: the site's choice, else the next one that was not tried."""
    candidates = [*filter(None, [rules.fallback]), *known]
    return next((name for name in candidates if name not in {failed, *tried}), None)


def sooner(*times: datetime | None) -> datetime | None:
    """The earliest; None, which is now, before all."""
    return None if None in times else min(time for time in times if time)


def _takes(route: RouteTable, transition: Transition) -> bool:
    finding = transition.finding
    return (
        SEVERITY[severity(transition)] >= SEVERITY[Level(route.level)]
        and any(fnmatchcase(finding.train, pattern) for pattern in route.trains)
        and any(fnmatchcase(finding.key, pattern) for pattern in route.keys)
    )


def _when(route: RouteTable, transition: Transition, zone: str) -> datetime | None:
    if not route.quiet or severity(transition) is Level.CRITICAL:
        return None
    begin, end = parse_hours(route.quiet)
    where = ZoneInfo(zone) if zone else None
    local = transition.at.astimezone(where)
    time = local.time()
    is_quiet = begin <= time < end if begin < end else time >= begin or time < end
    if not is_quiet:
        return None
    day = local.date() + timedelta(days=time >= end)
    # Without a zone it is this machine's, which may be another one in the morning: the clocks are changed at night.
    return datetime.combine(day, end, tzinfo=where).astimezone(transition.at.tzinfo)
