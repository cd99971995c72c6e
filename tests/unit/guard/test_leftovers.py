"""Processes that an ended attempt left behind on a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start(run: Path, attempt: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "TRAIN_RUN_DIR": str(run), "TRAIN_ATTEMPT": attempt}
    return subprocess.Popen(["sleep", "100"], env=env)


def test_only_processes_of_the_attempt_of_this_train_are_ended(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    left, next_start, other_train = start(run, "1_1.0"), start(run, "1_1.1"), start(other, "1_1.0")
    try:
        argv = (sys.executable, "-P", "-m", "opsctl.guard.leftovers", str(run), "1_1.0", "20")
        env = {**os.environ, "SLURMD_NODENAME": "node007"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=250, check=True)
        assert done.stdout == "node007\n"
        assert left.wait(20) == -9
        assert (next_start.poll(), other_train.poll()) == (None, None)
    finally:
        for process in (left, next_start, other_train):
            process.kill()
            process.wait()
