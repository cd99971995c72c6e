"""What other users run in tests: this checkout and its Python, which may lie in a home that nobody else may enter."""

from __future__ import annotations

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

    Each closed directory on the way, such as root's home, is covered by one that everybody may enter and that holds
    only what tests run. This process and those that it starts see that, and nobody else: the mounts end with them.
    Where mounting is not allowed, nothing changes, and `others_may_run` says no.
    """
    held: dict[Path, list[Path]] = {}
    for path in _needed():
        if (cover := _closed(path)) and not any(path.is_relative_to(each) for each in held.setdefault(cover, [])):
            held[cover].append(path)
    libc = ctypes.CDLL(None, use_errno=True)
    if not held or libc.unshare(CLONE_NEWNS) or not _mount(libc, "none", Path("/"), flags=MS_REC | MS_PRIVATE):
        return
    here = Path.cwd()
    for cover, paths in held.items():
        _cover(libc, cover, paths)
    os.chdir(here)  # through the cover


@functools.cache
def others_may_run() -> bool:
    """Whether another user may run opsctl by our Python, which takes every directory on the way into account."""
    env = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            (sys.executable, "-c", "import opsctl.cli, click, psutil, pydantic_core"), env=env, cwd="/",
            user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, timeout=250, check=False,
        )  # fmt: skip
    except PermissionError:
        return False
    return done.returncode == 0


def skip_unless_others_may_run() -> None:
    if not others_may_run():
        pytest.skip("other users may not run this checkout or its Python, and mounting that elsewhere is not allowed")


def _needed() -> list[Path]:
    """The checkout and all that its Python reads, the largest first, by every name that they go by."""
    places = [ROOT, *(Path(each) for each in (sys.prefix, sys.base_prefix, *sys.path) if each)]
    return [name for place in places if place.is_dir() for name in (place.absolute(), place.resolve())]


def _closed(path: Path) -> Path | None:
    """The first directory above `path` that others may not enter."""
    return next((above for above in reversed(path.parents) if not above.stat().st_mode & 0o001), None)


def _cover(libc: ctypes.CDLL, cover: Path, paths: Sequence[Path]) -> None:
    """Made aside and then moved, so that what cannot be made whole covers nothing."""
    with tempfile.TemporaryDirectory(prefix="opsctl-cover-", ignore_cleanup_errors=True) as name:
        aside = Path(name)
        if not _mount(libc, "tmpfs", aside, kind="tmpfs", options="mode=755,size=16m"):
            return
        made = True
        for path in paths:
            place = aside / path.relative_to(cover)
            place.mkdir(mode=0o755, parents=True)
            made = made and _mount(libc, str(path), place, flags=MS_BIND | MS_REC)
        if not (made and _mount(libc, name, cover, flags=MS_MOVE)):
            libc.umount2(bytes(aside), 2)  # MNT_DETACH: with what is mounted below


def _mount(libc: ctypes.CDLL, source: str, target: Path, *, kind: str = "", flags: int = 0, options: str = "") -> bool:
    return libc.mount(source.encode(), bytes(target), kind.encode(), flags, options.encode()) == 0
