"""A stop signal for a rank whose trainer runs below a shell or a launcher."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

from tests.integration.shell.test_rank import PREFIX, SLURM, start

SAVER = """
import signal, sys, time
def save(*_):
    time.sleep(1)
    open(sys.argv[1], "a").write("saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.1)  # a signal just before a sleep is handled only after it
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]])"
SCRIPTS = {
    "shell without a trap": "{trainer}; true",
    "shell with a trap": "trap : TERM; {trainer}; true",
    "shell that exits": "trap 'exit 143' TERM; {trainer} & wait",
    "shell in a shell": "bash -c '{trainer}; true'; true",
    "pipeline": "{trainer} | tee out; true",
    "launcher": "exec {python} launcher.py saver.py saved",
    "launcher below a shell": "{python} launcher.py saver.py saved; true",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_trainer_below_a_launcher_saves_once_on_a_signal(tmp_path, script):
    (tmp_path / "saver.py").write_text(SAVER)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    words = script.format(trainer=f"{sys.executable} saver.py saved", python=sys.executable)
    process = start(tmp_path, "bash", "-c", words, cwd=tmp_path)
    assert process.stdout.readline() == PREFIX + b"ready\n"
    process.terminate()
    process.communicate(timeout=250)
    assert (tmp_path / "saved").read_text() == "saved\n"


def test_helper_that_ignores_the_signal_is_not_waited_for(tmp_path):
    script = "(trap '' TERM; exec sleep 3000) & sleep 3000 & echo ready; wait"
    process = start(tmp_path, "bash", "-c", script)
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=250)
    assert process.returncode == -signal.SIGTERM


HELPER = """
import signal, time
for number in signal.valid_signals():
    try:
        signal.signal(number, lambda *_: None)
    except (OSError, ValueError):
        pass
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_helper_that_catches_every_signal_is_not_waited_for(tmp_path):
    (tmp_path / "helper.py").write_text(HELPER)
    process = start(tmp_path, "bash", "-c", f"{shlex.quote(sys.executable)} {tmp_path}/helper.py & sleep 3000")
    assert process.stdout.readline() == PREFIX + b"ready\n"
    process.terminate()
    process.communicate(timeout=250)


def start_with_signals(change, logs, *command):
    """Start the rank wrapper with one constant of opsctl.guard.rank_signals changed."""
    code = f"import sys; from opsctl.guard import rank, rank_signals; {change}; sys.exit(rank.main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "--logs", str(logs), "--", *command]
    return subprocess.Popen(argv, env={**os.environ, **SLURM}, stdout=subprocess.PIPE, process_group=0, cwd=logs)


KEEPER = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
subprocess.Popen([sys.executable, *sys.argv[1:]]).wait()
"""


def test_trainer_whose_launcher_kept_the_signal_saves(tmp_path):
    (tmp_path / "saver.py").write_text(SAVER)
    (tmp_path / "launcher.py").write_text(KEEPER)
    change = "rank_signals.PASS_ON_S = 0.5"
    argv = ("launcher.py", "saver.py", "saved")
    process = start_with_signals(change, tmp_path, sys.executable, *argv)
    assert process.stdout.readline() == PREFIX + b"ready\n"
    process.terminate()
    process.communicate(timeout=250)
    assert (tmp_path / "saved").read_text() == "saved\n"
