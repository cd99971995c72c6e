"""Access of other users to this checkout and its Python, which may lie in a closed home directory."""

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
    """Let other users reach the checkout and its Python at their paths, without changing a mode.

    A mount covers every closed directory on the path, such as root's home, with an open directory that holds only the
    checkout and its Python. Only this process and its children see the mounts, which end with these processes. Without
    permission to mount nothing changes and `others_may_run` returns False.
    """
    held: dict[Path, list[Path]] = {}
    for path in _list_needed_paths():
        cover = _find_closed_parent(path)
        if cover is None:
            continue
        paths = held.setdefault(cover, [])
        if not any(path.is_relative_to(parent) for parent in paths):
            paths.append(path)
    libc = ctypes.CDLL(None, use_errno=True)
    if not held or libc.unshare(CLONE_NEWNS) or not _mount(libc, "none", Path("/"), flags=MS_REC | MS_PRIVATE):
        return
    here = Path.cwd()
    for cover, paths in held.items():
        _cover(libc, cover, paths)
    os.chdir(here)  # enters the directory again through the mount


@functools.cache
def others_may_run() -> bool:
    """Return whether another user may run opsctl with this Python and reach every directory on the path."""
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
        pytest.skip("other users may not run this checkout or its Python, and mounting is not allowed")


def _list_needed_paths() -> list[Path]:
    """Return the checkout and the directories that its Python reads, largest first, as absolute and resolved paths."""
    names = [name for name in (sys.prefix, sys.base_prefix, *sys.path) if name]
    paths = []
    for directory in (ROOT, *map(Path, names)):
        if directory.is_dir():
            paths += [directory.absolute(), directory.resolve()]
    return paths


def _find_closed_parent(path: Path) -> Path | None:
    """Return the topmost directory above `path` that others may not enter."""
    return next((above for above in reversed(path.parents) if not above.stat().st_mode & 0o001), None)


def _cover(libc: ctypes.CDLL, cover: Path, paths: Sequence[Path]) -> None:
    """Build the cover in a temporary directory, then move it, so that an incomplete cover covers nothing."""
    with tempfile.TemporaryDirectory(prefix="opsctl-cover-", ignore_cleanup_errors=True) as name:
        aside = Path(name)
        if not _mount(libc, "tmpfs", aside, kind="tmpfs", options="mode=755,size=16m"):
            return
        is_complete = True
        for path in paths:
            target = aside / path.relative_to(cover)
            target.mkdir(mode=0o755, parents=True)
            is_complete = is_complete and _mount(libc, str(path), target, flags=MS_BIND | MS_REC)
        if not (is_complete and _mount(libc, name, cover, flags=MS_MOVE)):
            libc.umount2(bytes(aside), 2)  # MNT_DETACH: with the mounts below


def _mount(libc: ctypes.CDLL, source: str, target: Path, *, kind: str = "", flags: int = 0, options: str = "") -> bool:
    return libc.mount(source.encode(), bytes(target), kind.encode(), flags, options.encode()) == 0
