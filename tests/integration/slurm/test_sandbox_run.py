"""`opsctl sandbox run` and `shell`: a Slurm that ends with its command."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.slurms import OPSCTL, wait_until

LONG = [f"{number}{os.getpid():07}" for number in (1, 2, 3)]
"""Durations in seconds that identify the sleeping processes of these tests."""


def opsctl(*words: str, stdin: str = "", path: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SLURM_JOB_ID": "7", "PATH": path or os.environ["PATH"]}
    return subprocess.run(
        [*OPSCTL, *words], input=stdin, env=env, capture_output=True, text=True, timeout=250, check=False
    )


def find_sandbox_directory(path: str) -> Path:
    """Return the sandbox directory that contains `path`."""
    return Path("/tmp") / Path(path).relative_to("/tmp").parts[0]


def find_run_directory(pid: int) -> Path:
    """Return the sandbox directory of the `opsctl sandbox run` with this process id."""
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            words = process.cmdline()
            if "--inside" in words:
                return Path(words[words.index("--inside") + 1])
    raise AssertionError("no process of this run is inside a sandbox")


def find_sleepers(seconds: str) -> list[str]:
    """Return the processes `sleep <seconds>`. Zombies are left out, as they have no arguments."""
    names = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program, *words = (process / "cmdline").read_bytes().split(b"\0")
            if program.endswith(b"sleep") and words == [seconds.encode(), b""]:
                names.append(process.name)
        except OSError:
            continue
    return names


@contextmanager
def running(seconds: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Provide an `opsctl sandbox run` whose job sleeps, and its directory."""
    run = subprocess.Popen([*OPSCTL, "run", "--nodes", "2", "--", "srun", "-N2", "sleep", seconds])
    try:
        wait_until(lambda: find_sleepers(seconds))
        yield run, find_run_directory(run.pid)
    finally:
        run.kill()
        run.wait(250)


def test_output_and_exit_code_pass_and_nothing_is_left(_programs: None, home: Path) -> None:
    command = f"srun -N3 printenv SLURMD_NODENAME; echo $SLURM_CONF; sleep {LONG[2]} & exit 7"
    done = opsctl("run", "--nodes", "3", "--", "sh", "-c", command)
    assert done.returncode == 7, done.stderr
    *nodes, conf = done.stdout.split()
    assert sorted(nodes) == ["node001", "node002", "node003"]
    assert not find_sandbox_directory(conf).exists()
    assert not find_sleepers(LONG[2])
    assert not list(home.rglob("sandbox.json"))


def test_command_words_are_passed_unchanged(_programs: None) -> None:
    words = ["a b", "$(id)", "'", '"', "", "-x", "--nodes", "é\n"]
    done = opsctl("run", "--nodes", "1", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout == f"{words!r}\n"


def test_shell_reads_commands_without_an_outer_job(_programs: None) -> None:
    done = opsctl("run", "--nodes", "1", stdin="echo job=$SLURM_JOB_ID; srun printenv SLURMD_NODENAME; exit 4\n")
    assert (done.returncode, done.stdout) == (4, "job=\nnode001\n")


def test_killed_run_ends_everything(_programs: None) -> None:
    with running(LONG[0]) as (run, made):
        run.kill()
        wait_until(lambda: not find_sleepers(LONG[0]))
    assert list(made.iterdir()) == []
    made.rmdir()


def test_sigterm_ends_run_and_removes_its_directory(_programs: None) -> None:
    with running(LONG[1]) as (run, made):
        run.terminate()
        assert run.wait(250) == 128 + signal.SIGTERM
        wait_until(lambda: not find_sleepers(LONG[1]))
    assert not made.exists()


def test_run_without_namespaces_leaves_nothing(_programs: None, tmp_path: Path) -> None:
    unshare = tmp_path / "unshare"
    unshare.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2; exit 1\n")
    unshare.chmod(0o755)
    state = "grep -o '^StateSaveLocation=.*' $SLURM_CONF"
    command = f"srun -N2 true; setsid sleep {LONG[2]} & printenv SLURM_CONF; {state}; exit 5"
    done = opsctl("run", "--nodes", "2", "--", "sh", "-c", command, path=f"{tmp_path}:{os.environ['PATH']}")
    warning = "opsctl: this machine allows no private namespaces: using a background sandbox, removed afterwards\n"
    assert (done.returncode, done.stderr) == (5, warning)
    conf, state = done.stdout.split()
    assert not find_sandbox_directory(conf).exists()
    assert not find_sandbox_directory(state.partition("=")[2]).exists()
    assert not find_sleepers(LONG[2])
