"""Where everything of a site lies that belongs to no single train: `<root>/.site`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import cannot_write
from opsctl.state.files import write_atomic

OWNED = ("alerts", "nodes", "cron")


@dataclass(frozen=True, slots=True)
class SiteDir:
    """The site's directory. Properties are paths and touch nothing."""

    path: Path

    @classmethod
    def of(cls, root: Path) -> SiteDir:
        """That of the trains below `root`."""
        return cls(root / ".site")

    @property
    def alerts(self) -> Path:
        """What people were told, what they are still to be told, and what they do not want to hear."""
        return self.path / "alerts"

    @property
    def nodes(self) -> Path:
        """The history of each node."""
        return self.path / "nodes"

    @property
    def cron(self) -> Path:
        """What ran when, and what it said."""
        return self.path / "cron"

    @property
    def last_tick(self) -> Path:
        """When a tick of cron last gave a sign of life, in seconds since the epoch, as text."""
        return self.cron / "last-tick"

    def create(self) -> None:
        """Make every directory of it, for its owner alone to write. Idempotent. Raises RunDirError."""
        try:
            for path in reversed((self.path, *self.path.parents)):
                # One by one: parents made on the way would follow the umask, and often be the group's to write.
                if not path.exists():
                    path.mkdir(exist_ok=True, mode=0o755)
            for literal in OWNED:
                (self.path / literal).mkdir(exist_ok=True, mode=0o755)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def write(self, path: Path, data: str, *, mode: int = 0o644) -> None:
        """Write a file of the site's directory atomically. Raises RunDirError."""
        try:
            write_atomic(path, data, mode=mode)
        except OSError as error:
            raise cannot_write(path, error) from error
