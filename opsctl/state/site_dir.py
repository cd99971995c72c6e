"""Paths of the site directory `<root>/.site`: everything that belongs to no single train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import cannot_write
from opsctl.state.files import write_atomic

OWNED = ("alerts", "nodes", "cron")


@dataclass(frozen=True, slots=True)
class SiteDir:
    """The site directory. Properties are paths and touch nothing."""

    path: Path

    @classmethod
    def of(cls, root: Path) -> SiteDir:
        """Return the site directory of the trains below `root`."""
        return cls(root / ".site")

    @property
    def alerts(self) -> Path:
        """Delivered alerts, the outbox, and silences."""
        return self.path / "alerts"

    @property
    def nodes(self) -> Path:
        """The history of each node."""
        return self.path / "nodes"

    @property
    def cron(self) -> Path:
        """Runs of cron entries and their output."""
        return self.path / "cron"

    @property
    def logs(self) -> Path:
        """The debug logs, one per host and user."""
        return self.path / "logs"

    @property
    def last_tick(self) -> Path:
        """Time of the last cron tick, in seconds since the epoch, as text."""
        return self.cron / "last-tick"

    def create(self) -> None:
        """Make every directory, writable by the owner only. Idempotent. Raises RunDirError."""
        try:
            for path in reversed((self.path, *self.path.parents)):
                # One by one: parents made implicitly would follow the umask and could be writable by the group.
                if not path.exists():
                    path.mkdir(exist_ok=True, mode=0o755)
            for literal in OWNED:
                (self.path / literal).mkdir(exist_ok=True, mode=0o755)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def write(self, path: Path, data: str, *, mode: int = 0o644) -> None:
        """Write a file of the site directory atomically. Raises RunDirError."""
        try:
            write_atomic(path, data, mode=mode)
        except OSError as error:
            raise cannot_write(path, error) from error
