"""Check who could have written a path: every name on the way, every link, and where the path leads."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from opsctl.base.errors import RunDirError

MAX_LINKS = 40
"""As many as Linux follows."""


def check_trusted(paths: Iterable[Path], *, root: Path | None = None) -> None:
    """Check that other users can write neither the paths nor their parents, up to `root` or /.

    A link is checked itself, as are the place to which it leads and the parents of that place. Raises RunDirError with
    every offence. A directory with the sticky bit, such as /tmp, is no offence: users cannot replace files of other
    users there.
    """
    trusted = {0, os.geteuid()}
    ends = {place for place in (root, root and root.resolve()) if place}
    offences: dict[Path, str] = {}
    unknown: dict[Path, str] = {}
    for path in paths:
        for place in _components(path.absolute(), ends, MAX_LINKS):
            try:
                offences |= _find_offence(place, trusted)
            except OSError as error:
                unknown[place] = error.strerror or str(error)
    lines = "".join(f"\n  {path}: {why}" for path, why in (offences | unknown).items())
    if offences:
        raise RunDirError(
            f"others could have written what would be run here as you:{lines}",
            hint="chmod go-w them, or set trust_parents = true in site.toml if you trust everyone who can write there",
        )
    if unknown:
        raise RunDirError(
            f"opsctl cannot check who wrote what would be run here as you:{lines}",
            hint="check that the paths exist, and that you may read every directory above them",
        )


def _components(path: Path, ends: Iterable[Path], links: int) -> Iterator[Path]:
    """Yield the path and its parents up to one of `ends`, then the same of the target of each link among them."""
    for place in (path, *path.parents):
        yield place
        if links and place.is_symlink():
            yield from _components(place.parent / place.readlink(), ends, links - 1)
            yield from _components(place.resolve(), ends, 0)
        if place in ends:
            return


def _find_offence(path: Path, trusted: set[int]) -> dict[Path, str]:
    """Return why others could have written the path; empty if they could not. Raises OSError."""
    status = path.lstat()
    if status.st_uid not in trusted:
        return {path: f"belongs to uid {status.st_uid}"}
    if stat.S_ISLNK(status.st_mode):
        return {}  # a link has no mode; its directory and its target are checked as well
    if status.st_mode & 0o022 and not (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return {path: f"mode {stat.S_IMODE(status.st_mode):04o} lets others write"}
    return {}
