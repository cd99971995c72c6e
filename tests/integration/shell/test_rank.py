"""The rank wrapper that srun starts for each rank, executed as srun executes it."""

import os
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opsctl.guard.rank import PASSED_ON, find_free_port, rank_variables
from opsctl.trainer.contract import Env
from tests.support.cases import read_cases

SHIM = (sys.executable, "-m", "opsctl.guard.rank")
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURMD_NODENAME": "node002",
}
PREFIX = b"[node002:5]: "


def start(
    logs: Path, *command: str, env: dict[str, str] | None = None, option: str = "--rank-logs", **options
) -> subprocess.Popen[bytes]:
    argv = [*SHIM, option, str(logs), "--", *command]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "process_group": 0, **options}
    return subprocess.Popen(argv, env={**os.environ, **SLURM, **(env or {})}, **options)


def start_with(change: str, logs: Path, *command: str) -> subprocess.Popen[bytes]:
    """Start the rank wrapper with one constant of opsctl.guard.rank_output changed."""
    imports = "import sys; from opsctl.guard import rank, rank_output"
    code = f"{imports}; rank_output.{change}; sys.exit(rank.main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "--rank-logs", str(logs), "--", *command]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env={**os.environ, **SLURM}, stdout=pipe, stderr=pipe, process_group=0)


def run_shim(
    logs: Path, *command: str, env: dict[str, str] | None = None, **options
) -> subprocess.CompletedProcess[bytes]:
    process = start(logs, *command, env=env, **options)
    out, err = process.communicate(timeout=250)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def read_log(logs: Path) -> bytes:
    return (logs / "node002-5.log").read_bytes()


def wait_for(condition, seconds: float = 250) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def read_pids(path: Path, count: int) -> list[int]:
    assert wait_for(lambda: path.exists() and len(path.read_text().split()) == count)
    return [int(word) for word in path.read_text().split()]


@pytest.mark.parametrize(*read_cases(__file__, "command_ends_and_prints_as_without_the_shim"))
def test_command_ends_and_prints_as_without_the_shim(tmp_path, command, code, lines, log):
    done = run_shim(tmp_path, *command)
    assert (done.returncode, done.stdout.decode().splitlines()) == (
        code,
        [f"{PREFIX.decode()}{line}" for line in lines],
    )
    assert log is None or read_log(tmp_path).decode() == log


@pytest.mark.parametrize(*read_cases(__file__, "folded_task_counts_of_slurm_are_read"))
def test_folded_task_counts_of_slurm_are_read(text, node, tasks):
    env = {"SLURM_STEP_TASKS_PER_NODE": text, "SLURM_NODEID": str(node)}
    assert rank_variables(env)["LOCAL_WORLD_SIZE"] == str(tasks)


@pytest.mark.parametrize("argv", [[], ["--logs", "x"], ["--logs", "x", "y", "z"], ["--logs", "x", "--"], ["--help"]])
def test_invalid_arguments_exit_2(argv):
    done = subprocess.run([*SHIM, *argv], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        b"opsctl: usage: python -m opsctl.guard.rank --logs|--rank-logs DIR -- COMMAND...  |  --free-port\n",
    )


HOSTILE = ["", " ", "a b", "$(touch pwned)", "`id`", "'", '"', "\\", "\n", "a;b", "ü", "*", "--logs", "--", "x" * 3000]


def test_arguments_and_values_reach_the_command_unchanged(tmp_path):
    script = "import os,sys; sys.stdout.write(ascii([os.environ['V'], *sys.argv[1:]]))"
    for value in HOSTILE:
        done = run_shim(tmp_path, sys.executable, "-c", script, *HOSTILE, env={"V": value})
        assert done.stdout == PREFIX + ascii([value, *HOSTILE]).encode() + b"\n"


def test_node_variable_has_the_name_that_the_trainer_reads():
    assert Env.NODE in rank_variables({})


def test_rank_outside_slurm_is_alone():
    variables = rank_variables({})
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"]) == ("0", "1", "1")


def test_later_attempt_appends_to_the_log(tmp_path):
    run_shim(tmp_path, "echo", "one")
    run_shim(tmp_path, "echo", "two")
    assert read_log(tmp_path) == b"one\ntwo\n"


def test_binary_output_passes_unchanged(tmp_path):
    rubbish = bytes(b for b in range(256) if b not in b"\r\n")
    done = run_shim(tmp_path, sys.executable, "-c", f"import os; os.write(1, {rubbish!r})")
    assert done.stdout == PREFIX + rubbish + b"\n"


def test_line_of_a_megabyte_is_cut_without_loss(tmp_path):
    done = run_shim(tmp_path, sys.executable, "-c", "print('x' * 1000000)")
    assert done.stdout.count(b"x") == 1_000_000
    assert max(map(len, done.stdout.splitlines())) < 200_000
    assert read_log(tmp_path) == b"x" * 1_000_000 + b"\n"


def test_million_lines_arrive_in_order(tmp_path):
    done = run_shim(tmp_path, "seq", "1000000")
    assert done.stdout == b"".join(b"%s%d\n" % (PREFIX, n) for n in range(1, 1_000_001))
    assert read_log(tmp_path) == b"".join(b"%d\n" % n for n in range(1, 1_000_001))


def test_unfinished_line_is_shown_while_the_command_runs(tmp_path):
    process = start(tmp_path, "sh", "-c", "printf 'about to hang'; exec sleep 600", bufsize=0)
    assert select.select([process.stdout], [], [], 100)[0]
    assert process.stdout.readline() == PREFIX + b"about to hang\n"
    process.kill()
    process.communicate()


def test_full_disk_does_not_stop_the_command(tmp_path):
    (tmp_path / "node002-5.log").symlink_to("/dev/full")
    done = run_shim(tmp_path, "sh", "-c", "for n in 1 2 3; do echo $n; sleep 0.1; done; exit 85")
    path = tmp_path / "node002-5.log"
    assert done.returncode == 85
    assert done.stdout == PREFIX + b"1\n" + PREFIX + b"2\n" + PREFIX + b"3\n"
    assert done.stderr.decode() == (
        f"opsctl: {path}: No space left on device; the rank goes on without this log\n"
        f"opsctl: 6 bytes are missing from {path}\n"
    )


def test_missing_log_directory_does_not_stop_the_command(tmp_path):
    (tmp_path / "file").touch()
    done = run_shim(tmp_path / "file" / "logs", "echo", "hi")
    assert (done.returncode, done.stdout) == (0, PREFIX + b"hi\n")
    assert b"Not a directory; the rank goes on without this log\n" in done.stderr


def test_vanished_log_directory_does_not_stop_the_command(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    done = run_shim(logs, "sh", "-c", f"echo one; sleep 0.3; rm -r {logs}; echo two; exit 3")
    assert (done.returncode, done.stdout) == (3, PREFIX + b"one\n" + PREFIX + b"two\n")


def test_closed_pipe_does_not_stop_the_command(tmp_path):
    process = start(tmp_path, "sh", "-c", "seq 300000; exit 85")
    process.stdout.close()
    assert process.wait(timeout=250) == 85
    assert len(read_log(tmp_path)) == 1_988_895
    assert b"stdout: Broken pipe; the rank goes on without main_log" in process.stderr.read()
    process.stderr.close()


def test_closed_descriptors_do_not_stop_the_command(tmp_path):
    words = (*SHIM, "--rank-logs", str(tmp_path), "--", "sh", "-c", "echo hi; exit 85")
    command = f"exec {shlex.join(words)} >&- 2>&- <&-"
    assert subprocess.run(["sh", "-c", command], env={**os.environ, **SLURM}, timeout=250, check=False).returncode == 85
    assert read_log(tmp_path) == b"hi\n"


def test_unread_pipe_does_not_block_the_command_for_ever(tmp_path):
    """An unread pipe first blocks the command; then lines are dropped."""
    process = start_with("STUCK_S = 1", tmp_path, "sh", "-c", f"seq 300000; touch {tmp_path}/done")
    assert not wait_for((tmp_path / "done").exists, 0.5)
    assert wait_for((tmp_path / "done").exists)
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0
    assert len(read_log(tmp_path)) == 1_988_895
    assert len(out.splitlines()) < 300_000
    assert b"bytes are missing from main_log" in err


@pytest.mark.parametrize("number", [n for n in PASSED_ON if n != signal.SIGCONT])
def test_signals_are_passed_on(tmp_path, number):
    script = (
        "import signal,sys,time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.1)"  # a signal just before a sleep is handled only after it
    )
    process = start(tmp_path, sys.executable, "-c", script)
    assert process.stdout.readline() == PREFIX + b"ready\n"
    process.send_signal(number)
    process.communicate(timeout=250)
    assert process.returncode == 42


def test_sigcont_is_passed_on(tmp_path):
    process = start(tmp_path, "sh", "-c", "echo $$; kill -STOP $$; exit 42")
    process.stdout.readline()
    process.send_signal(signal.SIGCONT)
    assert wait_for(lambda: process.send_signal(signal.SIGCONT) or process.poll() is not None)
    assert process.returncode == 42
    process.communicate()


def test_signal_ignored_by_the_command_does_not_end_the_shim(tmp_path):
    process = start(tmp_path, "sh", "-c", "trap '' TERM; echo ready; sleep 0.5; exit 7")
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=250)
    assert process.returncode == 7


FAMILY = """
trap '' TERM HUP
sleep 300 & echo $! >> {0}
setsid sleep 300 & echo $! >> {0}
(setsid sh -c 'sleep 300 & echo $! >> {0}; wait' &)
until [ "$(wc -l <{0})" -ge 3 ]; do sleep 0.05; done
echo $$ >> {0}
"""


def test_command_ends_with_a_killed_shim(tmp_path):
    """Slurm ends what the command leaves behind: see tests/integration/slurm/test_rank_logs.py."""
    process = start(tmp_path, "sh", "-c", "trap '' TERM HUP; echo $$; exec sleep 300")
    command = int(process.stdout.readline().rpartition(b" ")[2])
    process.kill()
    assert wait_for(lambda: not is_alive(command))
    process.communicate()


def test_ended_command_leaves_no_process_behind(tmp_path):
    process = start(tmp_path, "sh", "-c", FAMILY.format(tmp_path / "pids") + "exit 85")
    process.communicate(timeout=250)  # the child processes, which keep the output open, would take three times as long
    assert process.returncode == 85
    assert not any(map(is_alive, read_pids(tmp_path / "pids", 4)))


@pytest.mark.parametrize(("script", "code"), [("exit 85", "85\n"), ("kill -9 $$", "137\n")])
def test_code_of_the_first_failed_rank_is_recorded(tmp_path, script, code):
    run_shim(tmp_path, "sh", "-c", script)
    run_shim(tmp_path, "sh", "-c", "exit 1", env={"SLURM_PROCID": "6"})
    assert (tmp_path / "first-exit").read_text() == code


def test_first_failure_is_recorded_before_processes_end(tmp_path):
    slow = start_with("DRAIN_S = 500", tmp_path, "sh", "-c", "sleep 600 & exit 85")
    assert wait_for((tmp_path / "first-exit").exists)
    assert slow.poll() is None
    slow.kill()
    slow.communicate()


def test_successful_rank_records_its_end_and_no_code(tmp_path):
    (tmp_path / "quiet").mkdir()
    run_shim(tmp_path, "true")
    assert (tmp_path / "quiet" / "node002").read_text().strip(" \0\n") == "ended 5 8"
    assert not (tmp_path / "first-exit").exists()


def test_free_port_is_outside_the_ephemeral_range():
    done = subprocess.run([*SHIM, "--free-port"], capture_output=True, text=True, check=True)
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert 10000 <= int(done.stdout) < 65536
    assert not low <= int(done.stdout) <= high


def test_free_ports_rarely_collide():
    assert len({find_free_port() for _ in range(20)}) > 15
