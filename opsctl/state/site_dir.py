"""Paths of the site directory `<root>/.site`: everything that belongs to no single train."""

import os
import pwd
import stat
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

from opsctl.base.errors import writing
from opsctl.host.system import user_name
from opsctl.state.files import BROKEN, Below, make_directories, write_atomic

OWNED = ("alerts", "nodes", "cron")


@dataclass(frozen=True, slots=True)
class SiteDir:
    """The site directory. Properties are paths and touch nothing."""

    path: Path

    @classmethod
    def of(cls, root: Path) -> Self:
        """Return the site directory of the trains below `root`."""
        return cls(root / ".site")

    alerts = Below("alerts")
    """Delivered alerts, the outbox, and silences."""
    nodes = Below("nodes")
    cron = Below("cron")
    """Runs of cron entries and their output."""
    logs = Below("logs")
    """The debug logs, one per host and user."""
    last_tick = Below("cron/last-tick")
    """Time of the last cron tick, in seconds since the epoch, as text."""

    def find_problem(self, owner: str = "") -> str:
        """Return why this directory is not trusted; empty for a trusted one, and for a missing one.

        In a shared root, anybody can make the directory first. It must belong to this user, to `owner`, to root, or to
        the owner of the directory around it, and nobody else may write in it.
        """
        try:
            status, around = self.path.lstat(), self.path.parent.stat()
        except OSError:
            return ""
        trusted = {os.geteuid(), 0, around.st_uid, find_uid(owner)}
        if not stat.S_ISDIR(status.st_mode):
            return f"{self.path}: not a directory"
        if status.st_uid not in trusted:
            name = user_name(status.st_uid)
            return f"{self.path}: belongs to {name}, who is neither you nor `site_owner` of site.toml"
        if status.st_mode & 0o022:
            return f"{self.path}: mode {stat.S_IMODE(status.st_mode):04o} lets others write"
        return ""

    def list_set_aside(self) -> list[str]:
        """Return a line for each file that could not be read when another took its place."""
        places = ("alerts", "alerts/outbox/*", "nodes/*", "cron", "watch/*")
        paths = sorted(chain.from_iterable(self.path.glob(f"{place}/*{BROKEN}") for place in places))
        return [f"{path}: could not be read, and counts as lost; if you know what it held, remove it" for path in paths]

    def create(self) -> None:
        """Make every directory, writable by the owner only. Idempotent. Raises RunDirError."""
        with writing(self.path):
            for literal in OWNED:
                make_directories(self.path / literal)

    def write(self, path: Path, data: str, *, mode: int = 0o644) -> None:
        """Write a file of the site directory atomically. Raises RunDirError."""
        with writing(path):
            write_atomic(path, data, mode=mode)


def find_uid(name: str) -> int | None:
    """Return the user id of a name; None for no name, and for one that this machine does not know."""
    try:
        return pwd.getpwnam(name).pw_uid if name else None
    except KeyError:
        return None
