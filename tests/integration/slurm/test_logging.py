"""What an engineer can read in the log of the job and in the debug log after a night."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.sandbox.cluster import Sandbox
from opsctl.state import switches
from opsctl.state.site_dir import SiteDir
from opsctl.state.switches import Switch
from tests.support.guarded_trains import GuardedTrain

UNTIL_ASKED = 'touch begun; while [ ! -e "$TRAIN_STOP_REQUEST" ]; do sleep 0.05; done; exit 7'
TOKEN = "xoxb-1234567890-abcdefghij"


@pytest.fixture
def train(tmp_path: Path, slurm: Sandbox) -> Iterator[GuardedTrain]:
    guarded_train = GuardedTrain(tmp_path, slurm)
    SiteDir.of(tmp_path).create()
    yield guarded_train
    guarded_train.clear()


def opsctl(train: GuardedTrain, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(train.site), *words]
    env = {**os.environ, **train.sandbox.env()}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=250, check=False)


def test_logs_tell_what_the_guard_did_and_why(train: GuardedTrain) -> None:
    array = train.submit(UNTIL_ASKED, tasks=2)
    train.wait_for("begun")
    switches.arm(train.run, Switch.PAUSE, why=f"rotate {TOKEN}")
    train.wait()
    assert train.end()["outcome"] == "paused"
    expected = [
        f"INFO    guard     attempt {array}_1.0 of gpt starts on ",
        "INFO    guard     the body runs",
        "INFO    guard     stop requested (pause): pause switch by ",
        "INFO    guard     the body ended with exit code 7",
        f"INFO    guard     held the queued tasks of {array}: ",
        f"INFO    guard     finalized {array}_1.0: paused, hold-queued: ",
    ]
    lines = [line.partition("Z ")[2] for line in train.log.splitlines() if "remaining processes" not in line]
    assert [text for text, line in zip(expected, lines, strict=True) if not line.startswith(text)] == []
    [path] = SiteDir.of(train.path).logs.glob("*.log")
    debug = path.read_text()
    for text in ("journal   [", "gpt: AttemptFinalized(", "command   [", f"scontrol hold {array}: exit 0 in "):
        assert text in debug
    assert f"guard run {train.run.path}" in debug
    assert "rotate ***" in train.log
    assert "rotate ***" in debug
    assert TOKEN not in train.log + debug


def test_verbose_shows_programs_on_stderr_only(train: GuardedTrain) -> None:
    quiet, verbose = opsctl(train, "nodes", "--json"), opsctl(train, "-v", "nodes", "--json")
    assert (quiet.returncode, quiet.stderr) == (verbose.returncode, "") == (0, "")
    assert json.loads(quiet.stdout) == json.loads(verbose.stdout)
    assert "DEBUG   command   sinfo --noheader" in verbose.stderr
    assert ": exit 0 in 0." in verbose.stderr


def test_commands_that_read_leave_no_files(train: GuardedTrain, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    site = tmp_path / "empty.toml"
    site.write_text(f'root = "{empty}"\n')
    for words in (("status", "--json"), ("-v", "nodes"), ("cron", "status")):
        assert opsctl(train, "--site", str(site), *words).returncode == 0
    assert not empty.exists()


def test_failure_reaches_the_debug_log(train: GuardedTrain) -> None:
    assert opsctl(train, "status", "no-such-train").returncode == 2
    [path] = SiteDir.of(train.path).logs.glob("*.log")
    assert "the command failed: " in path.read_text()
