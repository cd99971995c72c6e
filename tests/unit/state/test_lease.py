"""One writer at a time, without the file system's locks."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from opsctl.errors import RunDirError
from opsctl.host.system import SystemClock
from opsctl.state.lease import LEASE_STALE_S, LeaseBusy, lease


@dataclass
class Hands:
    """A clock that is moved by waiting on it."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    passed: float = 0.0

    def now(self):
        return self.at + timedelta(seconds=self.passed)

    def monotonic(self):
        return self.passed

    def sleep(self, seconds):
        self.passed += seconds


def leftovers(directory):
    return sorted(path.name for path in directory.iterdir())


def test_it_is_given_back(tmp_path):
    with lease(tmp_path, Hands()):
        assert ".lease" in leftovers(tmp_path)
    assert leftovers(tmp_path) == []


def test_it_is_given_back_after_a_failure(tmp_path):
    with pytest.raises(ZeroDivisionError), lease(tmp_path, Hands()):
        _ = 1 / 0
    assert leftovers(tmp_path) == []


def test_a_second_one_waits_and_gives_up(tmp_path):
    clock = Hands()
    with lease(tmp_path, clock), pytest.raises(LeaseBusy) as caught, lease(tmp_path, clock, wait=3):
        pass
    assert 3 <= clock.passed < 4
    assert caught.value.exit_code == 75
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    assert caught.value.message == f"{tmp_path}: {holder} has been writing here for 3 s"
    assert leftovers(tmp_path) == []


def test_a_lease_that_is_far_too_old_is_broken(tmp_path):
    clock = Hands()
    elsewhere = {"host": "another", "pid": 1, "started": 1, "at": clock.now().timestamp()}
    (tmp_path / ".lease").write_text(json.dumps(elsewhere))
    clock.passed = LEASE_STALE_S - 5
    with lease(tmp_path, clock, wait=10):
        assert clock.passed > LEASE_STALE_S
    assert leftovers(tmp_path) == []


def test_a_lease_whose_process_is_gone_is_broken_at_once(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from opsctl.state.lease import lease;"
        "from opsctl.host.system import SystemClock\n"
        "with lease(Path(sys.argv[1]), SystemClock()): os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=250, check=False)
    assert done.returncode == -signal.SIGKILL
    clock = Hands()
    with lease(tmp_path, clock):
        assert clock.passed < 0.2


def test_a_lease_whose_process_is_gone_is_broken_by_who_does_not_want_to_wait_too(tmp_path):
    killed = "import sys, os, signal; from pathlib import Path; from opsctl.state.lease import lease;"
    killed += (
        "from opsctl.host.system import SystemClock; held = lease(Path(sys.argv[1]), SystemClock()); held.__enter__();"
    )
    killed += "os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run((sys.executable, "-c", killed, str(tmp_path)), check=False, timeout=250)
    assert ".lease" in leftovers(tmp_path)
    with lease(tmp_path, SystemClock(), wait=0):
        pass


def test_a_lease_of_a_process_that_attempts_is_kept(tmp_path):
    clock = Hands()
    with lease(tmp_path, SystemClock()), pytest.raises(LeaseBusy), lease(tmp_path, clock, wait=LEASE_STALE_S / 2):
        pass


def test_what_cannot_be_read_is_held_by_somebody(tmp_path):
    (tmp_path / ".lease").write_text("{")
    with (
        pytest.raises(LeaseBusy, match="another process has been writing here for 1 s"),
        lease(tmp_path, Hands(), wait=1),
    ):
        pass


def test_a_directory_that_is_not_there_cannot_be_locked(tmp_path):
    with (
        pytest.raises(RunDirError, match="cannot be locked: No such file or directory"),
        lease(tmp_path / "x", Hands()),
    ):
        pass


def test_a_read_only_file_system_is_said_as_such(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,ro", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount")
    try:
        with pytest.raises(RunDirError, match="cannot be locked: Read-only file system"), lease(tmp_path, Hands()):
            pass
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_only_one_of_many_at_a_time(tmp_path):
    (tmp_path / "count").write_text("0")
    code = (
        "import sys; from pathlib import Path; from opsctl.state.lease import lease\n"
        "from opsctl.host.system import SystemClock\n"
        "d = Path(sys.argv[1])\n"
        "for _ in range(20):\n"
        "    with lease(d, SystemClock(), wait=99): (d / 'count').write_text(str(int((d / 'count').read_text()) + 1))\n"
    )
    many = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [popen.wait(timeout=250) for popen in many] == [0] * 4
    assert (tmp_path / "count").read_text() == "80"
    assert leftovers(tmp_path) == ["count"]


def test_a_holder_in_a_container_of_the_same_host_is_not_taken_for_dead(tmp_path):
    """Its process ids are others than ours, though its host has our name."""
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
