"""`opsctl drill` as a user types it: a sandbox, trains that break, a score card, and nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = ("rank-killed", "code-bug", "odd-lines")


@pytest.mark.long
@pytest.mark.usefixtures("_programs")
def test_drill_scores_three_faults_and_removes_the_sandbox(home: Path) -> None:
    argv = [sys.executable, "-P", "-m", "opsctl", "drill", "--json"]
    for fault in FAULTS:
        argv += ["--fault", fault]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    killed, bug, odd = json.loads(done.stdout)
    assert [score["fault"] for score in (killed, bug, odd)] == list(FAULTS)
    assert killed["cause"] in {"rank-killed", "killed"}  # srun says the one, the rank's exit code the other
    assert (killed["action"], killed["alerts"]) == ("continue", [])
    assert killed["steps_lost"] > 0
    assert killed["back_s"] > killed["noticed_s"]
    assert (bug["action"], bug["alerts"], bug["channels"]) == ("hold-queued", ["failures"], ["mail"])
    assert (odd["noticed_s"], odd["action"], odd["steps_lost"]) == (None, "", 0)
    state = home / ".local/state/opsctl"
    assert "drill-code-bug is held" in (state / "drill/mails").read_text()
    assert not list((state / "sandbox").glob("*"))
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if _is_of(path, state)]


def _is_of(environ: Path, state: Path) -> bool:
    try:
        return os.fsencode(state) in environ.read_bytes()
    except OSError:
        return False
