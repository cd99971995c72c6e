"""The marks of ranks that do nothing, with real processes."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from opsctl.guard import rank_activity
from opsctl.guard.rank_activity import Activity

WORKS = "while True: pass"
WAITS = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(rank_activity, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(rank_activity, "MARK_AFTER_S", 0.3)


@pytest.fixture
def start(tmp_path):
    ranks = []
    (tmp_path / "quiet").mkdir()

    def start_rank(*argv):
        ranks.append(subprocess.Popen(argv, start_new_session=True))
        variables = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1"}
        return ranks[-1].pid, Activity(ranks[-1].pid, str(tmp_path / "quiet" / "node1"), variables)

    yield start_rank
    for rank in ranks:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


def marks(activity):
    try:
        with open(activity.marks) as file:
            return ["-".join(line.split()) for line in file.read().replace("\0", "").splitlines() if line.strip()]
    except OSError:
        return []


def look_for(activity, seconds, *, until=None):
    end = time.monotonic() + seconds
    while time.monotonic() < end and (until is None or marks(activity) != until):
        activity.look()
        time.sleep(0.02)
    return marks(activity)


def settle(activity):
    """Return the marks that stay. On a busy machine, a rank that works may get no CPU for a while."""
    look_for(activity, 1.0)
    return look_for(activity, 60, until=[])


def test_waiting_rank_is_marked_idle(start):
    _, activity = start(sys.executable, "-c", WAITS)
    assert look_for(activity, 60, until=["idle-5-6"]) == ["idle-5-6"]


def test_stopped_rank_is_marked_until_it_goes_on(start):
    pid, activity = start(sys.executable, "-c", WORKS)
    os.kill(pid, signal.SIGSTOP)
    assert look_for(activity, 60, until=["stopped-5-6"]) == ["stopped-5-6"]
    os.kill(pid, signal.SIGCONT)
    assert look_for(activity, 60, until=[]) == []


def test_working_rank_has_no_mark(start):
    _, activity = start(sys.executable, "-c", WORKS)
    assert settle(activity) == []


def test_rank_that_works_below_a_shell_has_no_mark(start):
    _, activity = start("bash", "-c", f"{sys.executable} -c '{WORKS}' & wait")
    assert settle(activity) == []


def test_stopped_process_below_a_shell_is_found(start):
    _, activity = start("bash", "-c", f"{sys.executable} -c '{WORKS}' & sleep 0.3; kill -STOP $!; wait")
    assert look_for(activity, 60, until=["stopped-5-6"]) == ["stopped-5-6"]


def test_stopped_helper_of_a_working_rank_has_no_mark(start):
    _, activity = start("bash", "-c", f"sleep 60 & kill -STOP $!; {sys.executable} -c '{WORKS}' & wait")
    assert settle(activity) == []


def test_stopped_helper_of_a_waiting_rank_stops_nothing(start):
    _, activity = start("bash", "-c", f"sleep 60 & kill -STOP $!; {sys.executable} -c '{WAITS}' & wait")
    assert look_for(activity, 60, until=["idle-5-6"]) == ["idle-5-6"]


THREAD_IN_STATE_D = """
import os, sys, threading, time
opening = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
threading.Thread(target=os.posix_spawn, args=("/bin/true", ["true"], {}), kwargs={"file_actions": opening}).start()
time.sleep(60)
"""
"""The parent of a vfork cannot be interrupted until the child runs its program. The child waits for a FIFO."""
SLOW_SAVE = """
import sys, time
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(bytes(64 << 10))
        time.sleep(0.1)
"""


def test_rank_with_a_thread_that_waits_for_a_disk_has_no_mark(start, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    _, activity = start(sys.executable, "-c", THREAD_IN_STATE_D, str(tmp_path / "fifo"))
    assert look_for(activity, 0.8, until=["idle-5-6"]) == []


def test_rank_that_saves_slowly_has_no_mark(start, tmp_path):
    _, activity = start(sys.executable, "-c", SLOW_SAVE, str(tmp_path / "checkpoint"))
    assert look_for(activity, 0.8, until=["idle-5-6"]) == []


@pytest.mark.parametrize("program", ["srun", "docker", "mpirun"])
def test_rank_whose_work_is_elsewhere_has_no_mark(start, tmp_path, program):
    (tmp_path / program).symlink_to(shutil.which("sleep"))
    _, activity = start("bash", "-c", f"{tmp_path}/{program} 60 & wait")
    assert look_for(activity, 0.8, until=["idle-5-6"]) == []


def test_mark_that_could_not_be_removed_is_tried_again(start, monkeypatch):
    pid, activity = start(sys.executable, "-c", WORKS)
    os.kill(pid, signal.SIGSTOP)
    assert look_for(activity, 60, until=["stopped-5-6"]) == ["stopped-5-6"]
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", fail)
        os.kill(pid, signal.SIGCONT)
        assert look_for(activity, 0.5) == ["stopped-5-6"]
    assert look_for(activity, 60, until=[]) == []


def fail(*_):
    raise OSError(errno.EIO, "Input/output error")


def test_long_pause_between_looks_marks_nothing(start):
    pid, activity = start(sys.executable, "-c", WORKS)
    os.kill(pid, signal.SIGSTOP)
    for _ in range(3):
        time.sleep(0.5)  # as if Slurm had suspended the rank wrapper as well
        activity.look()
    assert marks(activity) == []


def test_marks_of_a_node_stay_apart(start, tmp_path):
    _, activity = start(sys.executable, "-c", WAITS)
    peer = Activity(0, activity.marks, {"RANK": "4", "WORLD_SIZE": "6", "LOCAL_RANK": "0"})
    peer.mark("ended")
    assert look_for(activity, 60, until=["ended-4-6", "idle-5-6"]) == ["ended-4-6", "idle-5-6"]
    activity.mark("")
    assert marks(activity) == ["ended-4-6"]


def test_end_removes_the_mark(start):
    _, activity = start(sys.executable, "-c", WAITS)
    look_for(activity, 60, until=["idle-5-6"])
    activity.mark("")
    assert marks(activity) == []
