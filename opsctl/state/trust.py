"""Check who could have written a path: every name on the way, every link, and where the path leads."""

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from opsctl.base.errors import NotTrusted, RunDirError
from opsctl.host.system import state_home, user_name
from opsctl.state.files import read_with_status, write_atomic

MAX_LINKS = 40
"""As many as Linux follows."""
WRITABLE = 0o022
"""Permission bits of the group and of others. The group bits of a file with an access list are the list's mask."""
MAX_TRUSTED_BYTES = 1 << 20
ROOT_OWNED = "OPSCTL_ROOT_OWNED"
"""Variable of `opsctl sandbox run`: paths of root. In its user namespace, they belong to HIDDEN_OWNER like others'."""
HIDDEN_OWNER = 65534
"""The kernel's default for a user that a namespace does not have."""
MAX_WRITING_S = 60.0
"""From the last byte of a file to its name: a slow file system needs seconds for the sync between them."""


def find_other_writers(status: os.stat_result) -> str:
    """Return how others than the owner could have written a file or given it this name; empty if they could not.

    Whoever may write in a directory can link and rename any file there, and so bring an old one back. Both change the
    time of the file's status, which nobody can set.
    """
    if status.st_mode & WRITABLE:
        return "others can write the file"
    if status.st_nlink != 1:
        return "the file has another name elsewhere"
    return "the file was renamed or changed afterwards" if status.st_ctime - status.st_mtime > MAX_WRITING_S else ""


def check_trusted(paths: Iterable[Path], *, root: Path | None = None) -> None:
    """Check that other users can write neither the paths nor their parents, up to `root` or /.

    A link is checked itself, as are the place to which it leads and the parents of that place. Raises RunDirError with
    every offence. A directory with the sticky bit, such as /tmp, is no offence: users cannot replace files of other
    users there.
    """
    offences, unknown = _find_offences(paths, root)
    if offences:
        raise RunDirError(
            f"others could have written what would be run here as you:{_list(offences | unknown)}",
            hint="chmod go-w them, or set trust_parents = true in site.toml if you trust everyone who can write there",
        )
    if unknown:
        raise RunDirError(
            f"opsctl cannot check who wrote what would be run here as you:{_list(unknown)}",
            hint="check that the paths exist, and that you may read every directory above them",
        )


def check_settings(path: Path, *, root: Path | None = None) -> None:
    """Check that no other user could have written a settings file, whose commands run as this user.

    Raises NotTrusted, unless this user has trusted the file before. A missing file is left to its reader.
    """
    offences, unknown = _find_offences([path], root)
    if os.path.lexists(path) and (offences or unknown) and str(path.absolute()) not in read_trusted():
        raise NotTrusted(
            f"others could have written {path}, whose commands run as you:{_list(offences | unknown)}",
            hint="chmod go-w them; or, if you trust everyone who can write there: opsctl --trust ...",
        )


def trust_settings(path: Path) -> None:
    """Remember that this user trusts a settings file, also in jobs and in cron. Raises OSError."""
    place, known = trusted_files(), read_trusted()
    if not str(path.absolute()).isprintable():
        raise RunDirError(f"{str(path)!r}: a name with control characters cannot be remembered as trusted")
    if str(path.absolute()) not in known:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(place, "".join(f"{name}\n" for name in [*known, path.absolute()]), mode=0o600)


def trusted_files() -> Path:
    """The file with the paths of the settings files that this user trusts although others could write them."""
    return state_home() / "trusted-files"


def read_trusted() -> list[str]:
    """Return the paths of trusted settings files; none if others could have written the list."""
    try:
        status, data = read_with_status(trusted_files(), MAX_TRUSTED_BYTES)
    except OSError:
        return []
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return data.decode(errors="surrogateescape").splitlines() if is_ours else []


def _list(offences: Mapping[Path, str]) -> str:
    return "".join(f"\n  {path}: {why}" for path, why in offences.items())


def _find_offences(paths: Iterable[Path], root: Path | None) -> tuple[dict[Path, str], dict[Path, str]]:
    """Return why others could have written the paths, and what could not be checked."""
    exempt = {*root.parents, *root.resolve().parents} if root else set()
    offences: dict[Path, str] = {}
    unknown: dict[Path, str] = {}
    for path in paths:
        for place in walk_components(path):
            try:
                trusted = {0, os.geteuid()} | find_hidden_root(place)
                if place not in exempt and (why := find_writers(place.lstat(), trusted)):
                    offences[place] = why
            except (OSError, RuntimeError) as error:
                unknown[place] = getattr(error, "strerror", None) or str(error)
    return offences, unknown


def walk_components(path: Path, links: int = MAX_LINKS) -> Iterator[Path]:
    """Yield every directory and link on the way from / to `path`, and those on the way to each link's target.

    A link in a directory that others can write is theirs, wherever the link leads; hence both ways count.
    """
    place = Path("/")
    yield place
    parts = list(reversed(path.absolute().parts[1:]))
    while parts:
        part = parts.pop()
        if part == "..":
            place = place.parent
            continue
        place /= part
        yield place
        if not place.is_symlink():
            continue
        if (links := links - 1) < 0:
            return
        target = place.readlink()
        place = Path("/") if target.is_absolute() else place.parent
        parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def list_root_owned(paths: Iterable[Path]) -> str:
    """Return ROOT_OWNED for a namespace without root: every directory on the way to the paths that belongs to root."""
    places = set(chain.from_iterable(walk_components(path) for path in paths if path.exists()))
    return os.pathsep.join(str(place) for place in places if place.lstat().st_uid == 0)


def find_hidden_root(place: Path) -> frozenset[int]:
    """Return the number that stands for root as the owner of `place` in this namespace; else nothing."""
    is_hidden = str(place) in os.environ.get(ROOT_OWNED, "").split(os.pathsep)
    return frozenset({HIDDEN_OWNER} if is_hidden else ())


def find_writers(status: os.stat_result, trusted: Collection[int]) -> str:
    """Return why users outside `trusted` could write or replace this one entry; empty if they could not."""
    if status.st_uid not in trusted:
        return f"belongs to {user_name(status.st_uid)}"
    # A link has no mode; its directory and its target are checked as well.
    if stat.S_ISLNK(status.st_mode) or not status.st_mode & WRITABLE:
        return ""
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return ""
    return f"mode {stat.S_IMODE(status.st_mode):04o} lets others write"
