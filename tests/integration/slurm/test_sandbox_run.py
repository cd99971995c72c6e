"""`opsctl sandbox run` and `shell`: a Slurm for one command, gone with it."""

from __future__ import annotations

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
"""Seconds that nobody else sleeps for."""


def opsctl(*words: str, stdin: str = "", path: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SLURM_JOB_ID": "7", "PATH": path or os.environ["PATH"]}
    return subprocess.run(
        [*OPSCTL, *words], input=stdin, env=env, capture_output=True, text=True, timeout=250, check=False
    )


def directory_of(path: str) -> Path:
    """The directory of a sandbox in which this is; others make and remove theirs meanwhile."""
    return Path("/tmp") / Path(path).relative_to("/tmp").parts[0]


def directory_below(process: int) -> Path:
    """That of the `run` which this process is."""
    for each in psutil.Process(process).children(recursive=True):
        with suppress(psutil.Error):
            if "--inside" in (words := each.cmdline()):
                return Path(words[words.index("--inside") + 1])
    raise AssertionError("it runs inside of none")


def sleepers(seconds: str) -> list[str]:
    """The processes `sleep <seconds>`; zombies have no arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program, *words = (process / "cmdline").read_bytes().split(b"\0")
            if program.endswith(b"sleep") and words == [seconds.encode(), b""]:
                found.append(process.name)
        except OSError:
            continue
    return found


@contextmanager
def running(seconds: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A `run` whose job sleeps by now, and its directory."""
    run = subprocess.Popen([*OPSCTL, "run", "--nodes", "2", "--", "srun", "-N2", "sleep", seconds])
    try:
        wait_until(lambda: sleepers(seconds))
        yield run, directory_below(run.pid)
    finally:
        run.kill()
        run.wait(100)


def test_the_commands_output_and_exit_code_come_through_and_nothing_is_left(_programs: None, home: Path) -> None:
    command = f"srun -N3 printenv SLURMD_NODENAME; echo $SLURM_CONF; sleep {LONG[2]} & exit 7"
    done = opsctl("run", "--nodes", "3", "--", "sh", "-c", command)
    assert done.returncode == 7, done.stderr
    *nodes, conf = done.stdout.split()
    assert sorted(nodes) == ["node001", "node002", "node003"]
    assert not directory_of(conf).exists()
    assert not sleepers(LONG[2])
    assert not list(home.rglob("sandbox.json"))


def test_the_command_is_passed_word_for_word(_programs: None) -> None:
    words = ["a b", "$(id)", "'", '"', "", "-x", "--nodes", "é\n"]
    done = opsctl("run", "--nodes", "1", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert done.stdout == f"{words!r}\n"


def test_a_shell_reads_its_commands_and_knows_no_other_job(_programs: None) -> None:
    done = opsctl("shell", "--nodes", "1", stdin="echo job=$SLURM_JOB_ID; srun printenv SLURMD_NODENAME; exit 4\n")
    assert (done.returncode, done.stdout) == (4, "job=\nnode001\n")


def test_killing_it_ends_everything(_programs: None) -> None:
    with running(LONG[0]) as (run, made):
        run.kill()
        wait_until(lambda: not sleepers(LONG[0]))
    assert list(made.iterdir()) == []
    made.rmdir()


def test_term_ends_it_and_leaves_not_even_a_directory(_programs: None) -> None:
    with running(LONG[1]) as (run, made):
        run.terminate()
        assert run.wait(100) == 128 + signal.SIGTERM
        wait_until(lambda: not sleepers(LONG[1]))
    assert not made.exists()


def test_where_namespaces_are_forbidden_it_runs_in_the_background_and_still_leaves_nothing(
    _programs: None, tmp_path: Path
) -> None:
    refuses = tmp_path / "unshare"
    refuses.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2; exit 1\n")
    refuses.chmod(0o755)
    state = "grep -o '^StateSaveLocation=.*' $SLURM_CONF"
    command = f"srun -N2 true; setsid sleep {LONG[2]} & printenv SLURM_CONF; {state}; exit 5"
    done = opsctl("run", "--nodes", "2", "--", "sh", "-c", command, path=f"{tmp_path}:{os.environ['PATH']}")
    warning = "opsctl: this machine allows no private namespaces: using a background sandbox, removed afterwards\n"
    assert (done.returncode, done.stderr) == (5, warning)
    conf, state = done.stdout.split()
    assert not directory_of(conf).exists()
    assert not directory_of(state.partition("=")[2]).exists()
    assert not sleepers(LONG[2])
