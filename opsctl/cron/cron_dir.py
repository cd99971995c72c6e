"""Where cron keeps what it knows: `<root>/.site/cron`."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from opsctl.errors import RunDirError
from opsctl.host.system import user_name
from opsctl.state.site_dir import SiteDir


@dataclass(frozen=True, slots=True)
class CronDir:
    """Properties are paths and touch nothing."""

    site: SiteDir

    @property
    def path(self) -> Path:
        """Whoever ticks holds its lease."""
        return self.site.cron

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.json"

    @property
    def output(self) -> Path:
        return self.path / "output"

    @property
    def driver(self) -> Path:
        """Whoever starts, stops or revives the driver holds its lease."""
        return self.path / "driver"

    @property
    def selected(self) -> Path:
        """Which driver is to run; without this file none is."""
        return self.driver / "wanted.json"

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    @property
    def is_ours(self) -> bool:
        return self.path.stat().st_uid == os.geteuid()

    def create(self) -> None:
        """Make every directory of it. Raises RunDirError, also where it is somebody else's."""
        if self.exists and not self.is_ours:
            raise RunDirError(
                f"{self.path}: belongs to {user_name(self.path.stat().st_uid)}, who ticks for this site",
                hint="ask them, or choose another `root` in site.toml",
            )
        self.site.create()
        try:
            for path in (self.output, self.driver):
                path.mkdir(exist_ok=True, mode=0o755)
        except OSError as error:
            raise RunDirError(f"{self.path}: {error.strerror}", hint="is it yours, and is there space left?") from error

    def touch(self, now: datetime) -> None:
        """Say that the tick is alive. What stands in the way is seen by others, as a tick that did not come."""
        with contextlib.suppress(RunDirError):
            self.site.write(self.site.last_tick, f"{now.timestamp():.0f}\n")

    def last_tick(self) -> datetime | None:
        """When a tick last gave a sign of life; None if never."""
        try:
            return datetime.fromtimestamp(float(self.site.last_tick.read_text()), UTC)
        except (OSError, ValueError, OverflowError):
            return None

    def is_overdue(self, every: int, now: datetime) -> bool:
        """Whether a driver is wanted, by us, and no tick came for two rounds and more: one look at two files."""
        try:
            found = self.selected.stat()
        except OSError:
            return False
        since = max(self.last_tick() or datetime.fromtimestamp(0, UTC), datetime.fromtimestamp(found.st_mtime, UTC))
        return found.st_uid == os.geteuid() and (now - since).total_seconds() > 2 * every + min(120, every)
