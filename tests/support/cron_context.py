"""A crontab for one test, real programs, and a clock that the test sets."""

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from opsctl.cron.cron_context import CronContext
from opsctl.cron.cron_dir import CronDir, EntryRun, RunHistory, read_ledger
from opsctl.cron.tick import TickRunner
from opsctl.settings.cron import CronSettings
from opsctl.state.site_dir import SiteDir
from tests.support.clocks import FakeClock

NOON = datetime(2026, 3, 2, 12, 0, 3, tzinfo=UTC)
"""A Monday, three seconds after a ten-minute tick was due."""


@dataclass
class CronSite:
    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOON))

    def __post_init__(self) -> None:
        self.directory = self.path / "cron"
        self.directory.mkdir()
        self.place = CronDir(SiteDir.of(self.path / "trains"))

    @property
    def cron(self) -> CronContext:
        settings = CronSettings.model_validate(
            {"directory": str(self.directory), "time_zone": "UTC", "timeout_seconds": 100, **self.settings}
        )
        env = {**os.environ, "HERE": str(self.path), "HOME": str(self.path)}
        return CronContext(place=self.place, settings=settings, clock=self.clock, env=env, trust_parents=True)

    def crontab(self, text: str) -> None:
        (self.directory / "crontab").write_text(text)

    def drop_in(self, name: str, text: str, *, mode: int = 0o755) -> Path:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def tick(self, *, after: float = 0, slot: datetime | None = None) -> dict[str, EntryRun]:
        """Run one tick, `after` seconds after the previous one."""
        self.clock.time += timedelta(seconds=after)
        self.place.create()
        return TickRunner(cron=self.cron, slot=slot).run()

    @property
    def ledger(self) -> RunHistory:
        return read_ledger(self.place)

    def read_output(self, ran: EntryRun) -> str:
        return (self.place.output / ran.output).read_text() if ran.output else ""

    @property
    def log_lines(self) -> list[str]:
        """The lines that entries appended to $HERE/log."""
        log = self.path / "log"
        return log.read_text().splitlines() if log.exists() else []
