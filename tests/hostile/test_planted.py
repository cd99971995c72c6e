"""Entries that a stranger has planted where opsctl writes, and what opsctl leaves to others under any umask and ACL."""

import json
import logging
import os
import stat
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from opsctl.base.errors import ConfigError, OpsctlError
from opsctl.cli import remote_host
from opsctl.host import log_config
from opsctl.host.system import SystemClock
from opsctl.report import formats, html_page
from opsctl.sandbox import directories
from opsctl.settings.loader import load_train
from opsctl.state import debug_log, files, trust
from opsctl.state.lease import lease
from opsctl.state.site_dir import SiteDir
from tests.hostile.conftest import Site
from tests.hostile.test_outputs import FORBIDDEN, PAYLOADS
from tests.support.cases import read_cases
from tests.support.hostile_users import STRANGER
from tests.support.made_reports import Train

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
    "atomic write": ("out/a", lambda site, place: files.write_atomic(place / "out/a", "x")),
    "append": ("out/a", lambda site, place: files.append(place / "out/a", b"x")),
    "append line": ("out/a", lambda site, place: files.append_line(place / "out/a", b"x\n")),
    "open for writing": ("out/a", lambda site, place: os.close(files.open_for_writing(place / "out/a"))),
    "touch": ("out/a", lambda site, place: files.touch(place / "out/a")),
    "create": ("out/a", lambda site, place: files.create(place / "out/a", b"x", mode=0o644)),
    "close to others": ("out/a", lambda site, place: files.close_to_others(place / "out/a")),
    "directory": ("out/a", lambda site, place: files.make_directory(place / "out/a", 0o777)),
    "mode of a directory": ("out/a", lambda site, place: files.set_directory_mode(place / "out/a", 0o777)),
    "lease": ("out/.lease", lambda site, place: lease(place / "out", SystemClock(), wait=0).__enter__()),
    "debug log": ("logs/{log}", write_debug_log),
    "removal of a sandbox": ("out/a", lambda site, place: directories.remove_run_directory(place / "out/a")),
    "new sandbox": ("out/a", lambda site, place: directories.make_run_directory(place / "out/a", mode=0o777)),
}
FOLLOWED = {(name, "link above") for name in WRITERS}
"""A directory that a person names may be a link: ~/out often is."""
FOLLOWED |= {(name, "hard link") for name in ("append", "append line", "open for writing")}
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
@pytest.mark.parametrize("kind", [*KINDS, "link to home", "directory of a stranger"])
@pytest.mark.parametrize("log", ["kept", "holds a secret"])
def test_publication_stays_in_its_directory(site: Site, tmp_path: Path, victim: Path, kind: str, log: str) -> None:
    place = tmp_path / "web"
    path = publish(site, place)
    (victim / "private").rename(victim / path.name)
    (victim / path.name).write_text(SECRET)
    if kind == "link to home":
        place.mkdir()
        (place / "tr11").symlink_to(victim)
        os.chown(place / "tr11", STRANGER.uid, -1, follow_symlinks=False)
    else:
        path.parent.mkdir(parents=True)
        os.chown(path.parent, STRANGER.uid, -1)
        if kind != "directory of a stranger":
            (victim / path.name).rename(victim / "private")
            plant(path, kind, victim)
            if kind == "link above":
                (victim / "private").rename(victim / path.name)
    if log == "holds a secret":
        (site.root / "tr11" / "logs" / "main_log.txt").unlink()
        (site.root / "tr11" / "logs" / "main_log.txt").symlink_to("/etc/passwd")
    site.opsctl("publish", "tr11")
    [only] = os.listdir(victim)
    assert (victim / only).read_text() == SECRET
    assert stat.S_IMODE((victim / only).stat().st_mode) == 0o600


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


@pytest.mark.attack("text of a stranger forges a record of the debug log, or a row of a report")
@pytest.mark.parametrize("text", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("output", ["debug log", "Markdown", "HTML", "audit", "host"])
def test_text_stays_text(site: Site, tmp_path: Path, output: str, text: str) -> None:
    if output == "debug log":
        place = SiteDir(tmp_path / ".site")
        place.create()
        log_config.configure(None)
        debug_log.attach(place, SystemClock())
        logging.getLogger("opsctl.guard.test").debug("%s", text)
        logging.getLogger("opsctl").handlers.clear()
        [log] = place.logs.iterdir()
        shown = log.read_text(errors="surrogateescape")
        assert sum(not line.startswith("    ") for line in shown.split("\n") if line) == 1
        assert not set(shown) & FORBIDDEN & set(map(chr, range(32)))
    elif output in {"Markdown", "HTML"}:
        train = Train(tmp_path)
        train.submit(0)
        train.start(1, "7_1.0")
        report = replace(train.report(100), train=text, notes=(text,))
        page = formats.markdown(report).replace("\\<", "") if output == "Markdown" else html_page.render_page(report)
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert output == "HTML" or not any(line.startswith(("tr99", "opsctl_train_up{")) for line in page.split("\n"))
    elif output == "audit":
        record = {
            "at": SystemClock().now().isoformat(),
            "kind": "ack",
            "actor": "a@b",
            "by": "a",
            "key": "k",
            "reason": text,
        }
        place = SiteDir.of(site.root)
        place.create()
        (place.alerts / "journal-a-0.jsonl").write_text(json.dumps(record) + "\n")
        shown = site.opsctl("audit").output
        assert not set(shown) & FORBIDDEN
        assert not any(line.startswith("tr99") for line in shown.splitlines())
    else:
        words = [text.replace("\0", ""), "--x", ""]
        line = remote_host.command_text("printf '%s\\0'", words)
        done = subprocess.run(
            ["sh", "-c", os.fsencode(line)], capture_output=True, check=True, cwd=tmp_path, timeout=99
        )
        assert done.stdout == b"".join(os.fsencode(word) + b"\0" for word in words)
        assert os.listdir(tmp_path) == []


@pytest.mark.attack("a value of [container] becomes an option, a line or another mount")
@pytest.mark.parametrize(*read_cases(__file__, "containers"))
def test_container_is_refused(tmp_path: Path, text: str) -> None:
    good = {"runtime": 'runtime = "apptainer"', "image": 'image = "a.sif"'}
    table = {**good, text.partition(" ")[0]: text.replace("\n", "\\n")}
    path = tmp_path / "train.toml"
    path.write_text(TRAIN + "[container]\n" + "\n".join(table.values()) + "\n")
    with pytest.raises(ConfigError) as refused:
        load_train(path)
    assert "container" in str(refused.value)
    assert not set(str(refused.value)) & (FORBIDDEN - {"\n"})


@pytest.mark.attack("a host answers a completion with names that are more than names")
@pytest.mark.parametrize(*read_cases(__file__, "answers"))
def test_answer_of_a_host_is_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, times: int | None
) -> None:
    ssh = tmp_path / "ssh"
    (tmp_path / "out").write_text(out * (times or 1))
    ssh.write_text(f"#!/bin/sh\ncat {tmp_path}/out\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    names = remote_host.complete_on_host("login1", "opsctl", "tr")
    assert all(name.startswith("tr") and name.isprintable() for name in names)


@pytest.mark.attack("trust in one file is trust in another")
@pytest.mark.parametrize("name", ["a\n{other}", "a\r{other}", "a\u2028{other}", "a\x0b{other}", "a\x85{other}"])
def test_trust_is_for_one_file(site: Site, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other.toml"
    other.write_text("")
    other.chmod(0o666)
    with suppress(OpsctlError):
        trust.trust_settings(Path(f"{tmp_path}/{name}".format(other=other)))
    assert str(other) not in trust.read_trusted()
