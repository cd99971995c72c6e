"""Entries that a stranger has planted where opsctl writes, and what opsctl leaves to others under any umask and ACL."""

import logging
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from opsctl.base.errors import OpsctlError
from opsctl.host import log_config
from opsctl.host.system import SystemClock
from opsctl.sandbox import record
from opsctl.state import debug_log, files, trust
from opsctl.state.lease import lease
from opsctl.state.site_dir import SiteDir
from tests.hostile.conftest import Site
from tests.support.cases import read_cases, read_table
from tests.support.hostile_users import STRANGER

TRAIN = 'name = "tr11"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "60"\n'
KINDS = ("link", "dangling link", "hard link", "pipe", "directory", "link above")
SECRET = "private\n"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory of the user with a private file; nothing else may appear in it."""
    place = tmp_path / "home"
    place.mkdir(mode=0o700)
    (place / "private").write_text(SECRET)
    (place / "private").chmod(0o600)
    return place


def plant(path: Path, kind: str, victim: Path) -> None:
    """Put an entry of a stranger at `path`, or a link in place of its directory."""
    if kind == "link above":
        path.parent.rmdir()
        path.parent.symlink_to(victim)
        os.chown(path.parent, STRANGER.uid, -1, follow_symlinks=False)
        return
    if kind == "hard link":
        path.hardlink_to(victim / "private")
        return
    {
        "link": lambda: path.symlink_to(victim / "private"),
        "dangling link": lambda: path.symlink_to(victim / "new"),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
    }[kind]()
    os.chown(path, STRANGER.uid, -1, follow_symlinks=False)


def is_untouched(victim: Path) -> bool:
    status = (victim / "private").stat()
    content = (victim / "private").read_text()
    return os.listdir(victim) == ["private"] and content == SECRET and stat.S_IMODE(status.st_mode) == 0o600


def publish(site: Site, place: Path) -> Path:
    run = site.train()
    run.body.touch(0o644)
    run.wrapper.touch(0o644)
    run.config.write_text(f'{TRAIN}[publish]\nto = "path"\npath = "{place}"\nreport = false\n')
    return place / "tr11" / "logs" / "main_log.txt"


def call_on_files(name: str, words: list[object]) -> Callable[[Site, Path], object]:
    return lambda site, place: getattr(files, name)(place / "out/a", *words)


def write_debug_log(site: Site, place: Path) -> None:
    log_config.configure(None)
    debug_log.attach(SiteDir(place), SystemClock())
    logging.getLogger("opsctl.guard.test").debug("a record")
    logging.getLogger("opsctl").handlers.clear()


WRITERS: dict[str, tuple[str, Callable[[Site, Path], object]]] = {
    "metrics": ("out/a.prom", lambda site, place: site.opsctl("metrics", "--textfile", place / "out/a.prom")),
    "report": (
        "out/a.html",
        lambda site, place: site.opsctl("report", site.train().path, "--html", place / "out/a.html"),
    ),
    "init": ("out/train.toml", lambda site, place: site.opsctl("init", "--dir", place / "out")),
    "lease": ("out/.lease", lambda site, place: lease(place / "out", SystemClock(), wait=0).__enter__()),
    "debug log": ("logs/{log}", write_debug_log),
    "removal of a sandbox": ("out/a", lambda site, place: record.remove_run_directory(place / "out/a")),
    "new sandbox": ("out/a", lambda site, place: record.make_run_directory(place / "out/a", mode=0o777)),
}
WRITERS |= {name: ("out/a", call_on_files(name, words)) for name, words in read_table(__file__, "functions").items()}
FOLLOWED = {(name, "link above") for name in WRITERS}
"""A directory that a person names may be a link: ~/out often is."""
FOLLOWED |= {(name, "hard link") for name in ("open_append", "open_for_writing")}
"""Backups link journals. That strangers cannot is the kernel's part: `doctor --security` checks it."""


@pytest.mark.root
@pytest.mark.attack("a planted entry leads a write into a private file")
@pytest.mark.parametrize(("name", "kind"), [pair for pair in product(WRITERS, KINDS) if pair not in FOLLOWED])
def test_planted_entry_is_not_written_through(site: Site, tmp_path: Path, victim: Path, name: str, kind: str) -> None:
    place = tmp_path / "shared"
    target, write = WRITERS[name]
    path = place / target.format(log=debug_log.DebugLog(SiteDir(place), SystemClock())._path.name)
    path.parent.mkdir(parents=True)
    plant(path, kind, victim)
    with suppress(OSError, OpsctlError):
        write(site, place)
    assert is_untouched(victim)


@pytest.mark.root
@pytest.mark.attack("a planted entry leads a publication into private files, or removes them")
@pytest.mark.parametrize("kind", ["link", "directory"])
@pytest.mark.parametrize("place", ["tr11", "tr11/logs"])
@pytest.mark.parametrize("log", ["published", "refused"])
def test_publication_stays_in_its_directory(
    site: Site, tmp_path: Path, victim: Path, *, kind: str, place: str, log: str
) -> None:
    publish(site, tmp_path / "web")
    (victim / "private").rename(victim / "main_log.txt")
    planted = tmp_path / "web" / place
    planted.parent.mkdir(parents=True)
    planted.symlink_to(victim if place == "tr11/logs" else victim.parent) if kind == "link" else planted.mkdir()
    os.chown(planted, STRANGER.uid, -1, follow_symlinks=False)
    if log == "refused":
        (site.root / "tr11/logs/main_log.txt").unlink()
        (site.root / "tr11/logs/main_log.txt").symlink_to("/etc/passwd")
    site.opsctl("publish", "tr11")
    assert not list(planted.glob("**/*")) or kind == "link"
    (victim / "main_log.txt").rename(victim / "private")
    assert is_untouched(victim)


ACL = struct.Struct("<HHI")
DEFAULT_ACL = struct.pack("<I", 2) + b"".join(
    ACL.pack(tag, mode, who)
    for tag, mode, who in ((tag, 7, STRANGER.uid if tag == 2 else 0xFFFFFFFF) for tag in (1, 2, 4, 16, 32))
)
"""Everybody may do everything, and the stranger by name, in every new directory and file below."""


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.root
@pytest.mark.attack("others can write what a command leaves, by umask, setgid or a default ACL")
@pytest.mark.parametrize("surroundings", ["umask 000", "umask 077", "setgid", "default ACL"])
@pytest.mark.parametrize(*read_cases(__file__, "steps"))
def test_nothing_is_left_to_others(
    site: Site, umask: Callable[[int], int], words: list[str], surroundings: str
) -> None:
    base = site.root.parent
    base.chmod(0o755)
    site.root.chmod(0o755)
    publish(site, base / "web")
    umask({"umask 000": 0, "umask 077": 0o077}.get(surroundings, 0o022))
    for path in (base, site.root):
        if surroundings == "setgid":
            os.chown(path, -1, STRANGER.uid)
            path.chmod(0o2755)
        elif surroundings == "default ACL":
            try:
                os.setxattr(path, "system.posix_acl_default", DEFAULT_ACL)
            except OSError:
                pytest.skip("a file system without access lists")
    site.opsctl(*(word.format(base=base) for word in words))
    left = [path for path in base.rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o022]
    allowed = {"switches", "requests"}
    assert [str(path.relative_to(base)) for path in left if path.name not in allowed] == []


@pytest.mark.attack("trust in one file is trust in another")
@pytest.mark.parametrize("name", ["a\n{other}", "a\r{other}", "a\u2028{other}", "a\x0b{other}", "a\x85{other}"])
def test_trust_is_for_one_file(site: Site, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other.toml"
    other.write_text("")
    other.chmod(0o666)
    with suppress(OpsctlError):
        trust.trust_settings(Path(f"{tmp_path}/{name}".format(other=other)))
    assert str(other) not in trust.read_trusted()
