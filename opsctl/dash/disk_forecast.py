"""The file systems as the watchdog fs_quota last measured them, with the course of their usage."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from opsctl.app import App
from opsctl.base.errors import OpsctlError
from opsctl.dash.sparklines import Sparkline, draw_sparkline
from opsctl.monitor.watch_cycle import filesystems
from opsctl.watchdogs.context import WatchdogMemory
from opsctl.watchdogs.fs_quota import FsQuota

HOURS_A_YEAR = 8760
UNMEASURED = "every 0.0 h"
_HORIZON = re.compile(r"^out of \w+ in ([\d,.]+) h")
_TONES = {"ok": "green", "unknown": "unknown", "warning": "amber", "critical": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCard:
    """One file system."""

    name: str
    tone: str
    text: str
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
            yield DiskCard(name=filesystem.name, tone="unknown", text=text, checked=None, curve=None)
            continue
        samples = memory.read(FsQuota.name, filesystem.name).get("samples", [])
        yield DiskCard(
            name=filesystem.name,
            tone=_TONES[entry.level],
            text="; ".join(part for part in entry.finding.summary.split("; ") if is_worth_showing(part)),
            checked=entry.checked_at,
            curve=draw_sparkline(_read_values(samples)),
            evidence=tuple(filter(is_worth_showing, entry.finding.evidence)),
        )


def is_worth_showing(part: str) -> bool:
    """Return False for an end that is over a year away, and for a rate that was measured over no time."""
    horizon = _HORIZON.search(part)
    return not part.endswith(UNMEASURED) and not (horizon and float(horizon[1].replace(",", "")) > HOURS_A_YEAR)


def _read_values(samples: object) -> list[float]:
    """Return the used bytes of samples `[time, used]`; nan for anything else in the file."""
    values = []
    for sample in samples if isinstance(samples, list) else ():
        used = sample[1] if isinstance(sample, list) and len(sample) == 2 else None
        values.append(float(used) if isinstance(used, int | float) else math.nan)
    return values
