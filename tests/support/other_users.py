"""Let other users run this checkout and its Python, which may lie in a home directory closed to them."""

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

NOBODY = 65534
ROOT = Path(__file__).parents[2]
CLONE_NEWNS = 0x20000
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000


def open_to_other_users() -> None:
    """Let other users reach the checkout and its Python where they lie, without changing a mode.

    Each closed directory on the way, such as root's home, is covered by a mount that all users may enter and that holds
    only the files that tests run. Only this process and its children see the mounts, which end with them. Where
    mounting is not allowed, nothing changes, and `others_may_run` returns False.
    """
    covers: dict[Path, list[Path]] = {}
    for path in _list_needed_paths():
        closed = _find_closed_parent(path)
        if closed is None:
            continue
        paths = covers.setdefault(closed, [])
        if not any(path.is_relative_to(covered) for covered in paths):
            paths.append(path)
    libc = ctypes.CDLL(None, use_errno=True)
    if not covers or libc.unshare(CLONE_NEWNS) or not _mount(libc, "none", Path("/"), flags=MS_REC | MS_PRIVATE):
        return
    here = Path.cwd()
    for closed, paths in covers.items():
        _cover(libc, closed, paths)
    os.chdir(here)  # through the cover


@functools.cache
def others_may_run() -> bool:
    """Return whether another user may run opsctl with our Python, through every directory on the way."""
    env = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            (sys.executable, "-c", "import opsctl.cli, click, psutil, pydantic_core"),
            env=env,
            cwd="/",
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            timeout=250,
            check=False,
        )
    except PermissionError:
        return False
    return done.returncode == 0


def skip_unless_others_may_run() -> None:
    if not others_may_run():
        pytest.skip("other users may not run this checkout or its Python, and mounting that elsewhere is not allowed")


def _list_needed_paths() -> list[Path]:
    """Return the directories of the checkout and of its Python, the largest first, each as named and as resolved."""
    names = [str(ROOT), sys.prefix, sys.base_prefix, *sys.path]
    places = [Path(name) for name in names if name]
    paths: list[Path] = []
    for place in places:
        if place.is_dir():
            paths += [place.absolute(), place.resolve()]
    return paths


def _find_closed_parent(path: Path) -> Path | None:
    """Return the first directory above `path` that other users may not enter."""
    return next((above for above in reversed(path.parents) if not above.stat().st_mode & 0o001), None)


def _cover(libc: ctypes.CDLL, closed: Path, paths: Sequence[Path]) -> None:
    """Cover a closed directory by a mount that holds only `paths`.

    The mount is built elsewhere and then moved, so that an incomplete one covers nothing.
    """
    with tempfile.TemporaryDirectory(prefix="opsctl-cover-", ignore_cleanup_errors=True) as name:
        aside = Path(name)
        if not _mount(libc, "tmpfs", aside, kind="tmpfs", options="mode=755,size=16m"):
            return
        made = True
        for path in paths:
            place = aside / path.relative_to(closed)
            place.mkdir(mode=0o755, parents=True)
            made = made and _mount(libc, str(path), place, flags=MS_BIND | MS_REC)
        if not (made and _mount(libc, name, closed, flags=MS_MOVE)):
            libc.umount2(bytes(aside), 2)  # MNT_DETACH: with the mounts below


def _mount(libc: ctypes.CDLL, source: str, target: Path, *, kind: str = "", flags: int = 0, options: str = "") -> bool:
    return libc.mount(source.encode(), bytes(target), kind.encode(), flags, options.encode()) == 0
