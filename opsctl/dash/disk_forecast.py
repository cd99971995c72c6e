"""The file systems as the watchdog fs_quota last measured them, with the course of their usage."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.base.statements import Statement, say
from opsctl.dash.sparklines import Sparkline, draw_sparkline
from opsctl.monitor.run_watchdogs import filesystems
from opsctl.watchdogs.context import WatchdogMemory
from opsctl.watchdogs.fs_quota import FORECAST, GROWTH, FsQuota, UsageMemory

HOURS_A_YEAR = 8760
UNMEASURED_S = 180
"""An interval between checkpoints that is shorter says nothing about the rate of a day."""
_TONES = {"ok": "green", "unknown": "unknown", "warning": "amber", "critical": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCard:
    name: str
    tone: str
    texts: tuple[str, ...]
    """Usage and forecast, or why they are unknown."""
    checked: datetime | None
    curve: Sparkline | None
    evidence: tuple[str, ...] = ()


def list_disks(app: App, problems: list[str]) -> Iterator[DiskCard]:
    """Yield the site's file systems. Measures nothing."""
    try:
        entries = app.alerting.ledger.levels()
    except OpsctlError as error:
        problems.append(f"alerts: {error.message}")
        entries = {}
    memory = WatchdogMemory(app.site_dir.path / "watch")
    for filesystem in filesystems(app.site):
        entry = entries.get(f"{FsQuota.name}/{filesystem.name}")
        if entry is None or entry.finding is None:
            text = f"{filesystem.name} ({filesystem.path}): not measured yet; opsctl watch measures it"
            yield DiskCard(name=filesystem.name, tone="unknown", texts=(text,), checked=None, curve=None)
            continue
        says = entry.finding.says
        parts = tuple(filter(is_worth_showing, says.parts))
        samples = memory.recall(UsageMemory, FsQuota.name, filesystem.name).samples
        yield DiskCard(
            name=filesystem.name,
            tone=_TONES[entry.level],
            texts=(say(replace(says, parts=parts[:1])), *map(say, parts[1:])),
            checked=entry.checked_at,
            curve=draw_sparkline([used for _, used in samples]),
            evidence=tuple(map(say, filter(is_worth_showing, entry.finding.details))),
        )


def is_worth_showing(part: Statement) -> bool:
    """Return False for an end that is over a year away, and for a rate that was measured over no time."""
    hours, every_s = part.facts.get("hours"), part.facts.get("every_s")
    is_far = part.kind == FORECAST and isinstance(hours, int | float) and hours > HOURS_A_YEAR
    is_unmeasured = part.kind == GROWTH and isinstance(every_s, int | float) and every_s < UNMEASURED_S
    return not (is_far or is_unmeasured)
