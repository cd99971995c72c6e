"""Security checks of the trains that belong to the user."""

from __future__ import annotations

import grp
import stat
from collections.abc import Iterator
from pathlib import Path

from opsctl.preflight.security.permissions import (
    SecurityFinding,
    as_owner,
    find_offence,
    find_offences_below,
    from_offence,
    ok,
    unknown,
    unsafe,
)
from opsctl.state.run_dir import SHARED, RunDir, all_trains, may_act


def check_trains(root: Path, group: str, trusted: frozenset[int]) -> Iterator[SecurityFinding]:
    """Check the trains of this user. Those of others are their owners' to check."""
    own = [run for run in all_trains(root) if may_act(run)]
    unsafe_trains = 0
    for run in own:
        findings = list(_check_train(run, group, trusted))
        unsafe_trains += bool(findings)
        yield from findings
    if not unsafe_trains:
        yield ok("trains", f"{len(own)} of yours: code, journals and logs are writable by you alone")


def _check_train(run: RunDir, group: str, trusted: frozenset[int]) -> Iterator[SecurityFinding]:
    if offence := find_offence(run.path, trusted):
        yield from_offence("trains", offence)
    for path in sorted(run.path.iterdir()):
        if path.name in SHARED:
            yield from _check_shared(path, group)
        else:
            yield from (from_offence("trains", offence) for offence in find_offences_below(path, trusted))


def _check_shared(path: Path, group: str) -> Iterator[SecurityFinding]:
    """Check switches/ or requests/: members of the site's group, and nobody else, make entries there."""
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        yield unsafe("trains", f"{path}: not a directory", as_owner(status, "rm", path))
    elif mode & stat.S_IWOTH:
        why = f"{path}: mode {mode:04o} lets everybody stop, save and release the train"
        yield unsafe("trains", why, as_owner(status, "chmod", "o-w" if group else "go-w", path))
    elif mode & stat.S_IWGRP and not group:
        why = f"{path}: mode {mode:04o} lets a group write, and site.toml names no group"
        yield unsafe("trains", why, as_owner(status, "chmod", "g-w", path))
    elif mode & stat.S_IWGRP:
        yield from _check_group(path, status.st_gid, group)


def _check_group(path: Path, gid: int, group: str) -> Iterator[SecurityFinding]:
    try:
        expected = grp.getgrnam(group).gr_gid
    except KeyError:
        yield unknown("trains", f"{path}: the group {group!r} of site.toml does not exist on this machine")
        return
    if gid != expected:
        why = f"{path}: another group than {group}, which site.toml names, can write"
        yield unsafe("trains", why, as_owner(path.lstat(), "chgrp", group, path))
