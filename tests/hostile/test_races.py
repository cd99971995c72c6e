"""Another user swaps an entry between the check and the use of it, told by inotify when opsctl looks.

The swapper is a process of its own, and for the shared root one of another user. Each race is bounded to seconds.
"""

import contextlib
import ctypes
import os
import signal
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.trainer.atomic_files import write_atomic

RACE_S = 1.5
IN_OPEN, IN_CREATE, IN_MOVED_TO, IN_ATTRIB, IN_CLOSE = 0x20, 0x100, 0x80, 0x4, 0x18
EVENT = struct.Struct("iIII")
NOBODY = 65534


@contextlib.contextmanager
def swapping(directory: Path, swap: Callable[[str], None], *, uid: int | None = None) -> Iterator[None]:
    """Call `swap` with the name of every entry of `directory` that changes or is opened, in a process of `uid`."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            _watch(directory, swap)
        os._exit(0)
    time.sleep(0.05)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _watch(directory: Path, swap: Callable[[str], None]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init()
    libc.inotify_add_watch(handle, os.fsencode(directory), IN_OPEN | IN_CREATE | IN_MOVED_TO | IN_ATTRIB | IN_CLOSE)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        data = os.read(handle, 65536)
        while data:
            _, _, _, size = EVENT.unpack_from(data)
            name = data[EVENT.size : EVENT.size + size].rstrip(b"\0").decode(errors="surrogateescape")
            data = data[EVENT.size + size :]
            with contextlib.suppress(OSError):
                swap(name)


def replace_by_link(directory: Path, target: Path) -> Callable[[str], None]:
    def swap(name: str) -> None:
        path = directory / name
        if name and not path.is_symlink() and not name.startswith("mine"):
            path.unlink()
            path.symlink_to(target)

    return swap


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory in which another user may replace entries, as in switches/."""
    for path in (*reversed(tmp_path.parents), tmp_path):
        if os.access(path, os.W_OK) and path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o777)
    return place


def race(attempt: Callable[[int], None]) -> int:
    until, count = time.monotonic() + RACE_S, 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            attempt(count)
        count += 1
    return count


class TestSwaps:
    pytestmark = pytest.mark.root

    @pytest.mark.attack("a swap during an atomic write changes the mode of a private file")
    @pytest.mark.parametrize("mode", [0o644, 0o664, 0o755])
    def test_mode_of_a_private_file_stays(self, place, tmp_path, mode):
        private = tmp_path / "private"
        private.write_text("secret")
        private.chmod(0o600)
        with swapping(place, replace_by_link(place, private), uid=NOBODY):
            count = race(lambda number: write_atomic(place / f"file{number % 5}", "x", mode=mode))
        assert count > 10
        assert stat.S_IMODE(private.stat().st_mode) == 0o600

    @pytest.mark.attack("a swap during an atomic write changes the contents of a private file")
    def test_contents_of_a_private_file_stay(self, place, tmp_path):
        private = tmp_path / "private"
        private.write_text("secret")
        with swapping(place, replace_by_link(place, private), uid=NOBODY):
            race(lambda number: write_atomic(place / f"file{number % 5}", "x"))
        assert private.read_text() == "secret"
