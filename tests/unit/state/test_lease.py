"""Leases: a single writer at a time, without file locks."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from opsctl.base.errors import RunDirError
from opsctl.host.system import SystemClock
from opsctl.state.lease import LEASE_STALE_S, LeaseBusy, lease
from tests.support.mounts import mounting


@dataclass
class FakeClock:
    """A clock that advances when the code sleeps."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    passed_s: float = 0.0

    def now(self):
        return self.at + timedelta(seconds=self.passed_s)

    def monotonic(self):
        return self.passed_s

    def sleep(self, seconds):
        self.passed_s += seconds


def leftovers(directory):
    return sorted(path.name for path in directory.iterdir())


def test_lease_is_released(tmp_path):
    with lease(tmp_path, FakeClock()):
        assert ".lease" in leftovers(tmp_path)
    assert leftovers(tmp_path) == []


def test_lease_is_released_after_an_exception(tmp_path):
    with pytest.raises(ZeroDivisionError), lease(tmp_path, FakeClock()):
        _ = 1 / 0
    assert leftovers(tmp_path) == []


def test_second_holder_waits_and_times_out(tmp_path):
    clock = FakeClock()
    with lease(tmp_path, clock), pytest.raises(LeaseBusy) as caught, lease(tmp_path, clock, wait=3):
        pass
    assert 3 <= clock.passed_s < 4
    assert caught.value.exit_code == 75
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    assert caught.value.message == f"{tmp_path}: {holder} has been writing here for 3 s"
    assert leftovers(tmp_path) == []


def test_stale_lease_is_broken(tmp_path):
    clock = FakeClock()
    elsewhere = {"host": "another", "pid": 1, "started": 1, "at": clock.now().timestamp()}
    (tmp_path / ".lease").write_text(json.dumps(elsewhere))
    os.utime(tmp_path / ".lease", (0, 0))
    clock.passed_s = LEASE_STALE_S - 5
    with lease(tmp_path, clock, wait=10):
        assert clock.passed_s > LEASE_STALE_S
    assert leftovers(tmp_path) == []


def test_lease_of_a_dead_process_is_broken_at_once(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from opsctl.state.lease import lease;"
        "from opsctl.host.system import SystemClock\n"
        "with lease(Path(sys.argv[1]), SystemClock()): os.kill(os.getpid(), signal.SIGKILL)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=250, check=False)
    assert result.returncode == -signal.SIGKILL
    clock = FakeClock()
    with lease(tmp_path, clock):
        assert clock.passed_s < 0.2


def test_lease_of_a_dead_process_is_broken_without_waiting(tmp_path):
    killed = "import sys, os, signal; from pathlib import Path; from opsctl.state.lease import lease;"
    killed += (
        "from opsctl.host.system import SystemClock; held = lease(Path(sys.argv[1]), SystemClock()); held.__enter__();"
    )
    killed += "os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run((sys.executable, "-c", killed, str(tmp_path)), check=False, timeout=250)
    assert ".lease" in leftovers(tmp_path)
    with lease(tmp_path, SystemClock(), wait=0):
        pass


@pytest.mark.parametrize("holder_h", [0, 9, -7])
@pytest.mark.parametrize("waiter_h", [0, 1, 9, -7])
def test_lease_of_a_running_process_is_respected_whatever_the_clocks_show(tmp_path, holder_h, waiter_h):
    holder, waiter = (FakeClock(at=datetime.now(UTC) + timedelta(hours=hours)) for hours in (holder_h, waiter_h))
    with lease(tmp_path, holder), pytest.raises(LeaseBusy), lease(tmp_path, waiter, wait=LEASE_STALE_S / 2):
        pass


def test_unreadable_lease_is_respected(tmp_path):
    (tmp_path / ".lease").write_text("{")
    with (
        pytest.raises(LeaseBusy, match="another process has been writing here for 1 s"),
        lease(tmp_path, FakeClock(), wait=1),
    ):
        pass


def test_missing_directory_cannot_be_locked(tmp_path):
    with (
        pytest.raises(RunDirError, match="cannot be locked: No such file or directory"),
        lease(tmp_path / "x", FakeClock()),
    ):
        pass


@pytest.mark.root
def test_read_only_file_system_is_reported(tmp_path):
    with (
        mounting(tmp_path, "size=64k,ro"),
        pytest.raises(RunDirError, match="cannot be locked: Read-only file system"),
        lease(tmp_path, FakeClock()),
    ):
        pass


def test_processes_hold_the_lease_in_turn(tmp_path):
    (tmp_path / "count").write_text("0")
    code = (
        "import sys; from pathlib import Path; from opsctl.state.lease import lease\n"
        "from opsctl.host.system import SystemClock\n"
        "d = Path(sys.argv[1])\n"
        "for _ in range(20):\n"
        "    with lease(d, SystemClock(), wait=99): (d / 'count').write_text(str(int((d / 'count').read_text()) + 1))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [popen.wait(timeout=250) for popen in processes] == [0] * 4
    assert (tmp_path / "count").read_text() == "80"
    assert leftovers(tmp_path) == ["count"]


def test_holder_in_a_container_is_respected(tmp_path):
    """The container has the name of this host and other process ids."""
    program = (
        "import sys; from pathlib import Path; from opsctl.state.lease import lease\n"
        "from opsctl.host.system import SystemClock\n"
        "with lease(Path(sys.argv[1]), SystemClock()): print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    as_user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    contained = ["unshare", *as_user, "--pid", "--fork", "--kill-child", "--mount-proc", *words]
    holder = subprocess.Popen(contained, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        if holder.stdout.readline() != b"held\n":
            pytest.skip(f"no namespace of process ids here: {holder.stderr.read().decode()}")
        with pytest.raises(LeaseBusy), lease(tmp_path, SystemClock(), wait=0.5):
            pass
    finally:
        holder.communicate(b"")


@pytest.mark.parametrize("skew_h", [0, 6, -6])
def test_lease_from_before_the_disk_was_full_is_respected(tmp_path, monkeypatch, skew_h):
    def refuse(path, data, *, mode):
        raise OSError(errno.ENOSPC, "No space left on device")

    skewed = FakeClock(at=datetime.now(UTC) + timedelta(hours=skew_h))
    with lease(tmp_path, FakeClock()):
        monkeypatch.setattr("opsctl.state.lease.create", refuse)
        with pytest.raises(LeaseBusy), lease(tmp_path, skewed, wait=1):
            pass
    with pytest.raises(RunDirError, match="No space"), lease(tmp_path, FakeClock()):
        pass
