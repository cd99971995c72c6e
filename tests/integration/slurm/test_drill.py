"""`opsctl drill` as a user types it: a sandbox, trains that break, a score card, and nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from tests.support.cases import read_table
from tests.support.trains import trains_on, until

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
    assert killed["steps_lost"] is not None  # 0 if the fault came just after a save
    assert killed["back_s"] > killed["noticed_s"]
    assert (bug["action"], bug["alerts"], set(bug["channels"])) == ("hold-queued", ["failures"], {"mail", "backup"})
    assert set(bug["recipients"]) == {"oncall@example.org", "lead@example.org"}
    assert {"queue", "hang until noticed"} <= killed["lost_s"].keys()
    assert (odd["noticed_s"], odd["action"], odd["steps_lost"]) == (None, "", 0)
    state = home / ".local/state/opsctl"
    assert "drill-code-bug is held" in (state / "drill/mails").read_text()
    assert not list((state / "sandbox").glob("*"))
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if _is_of(path, state)]


@pytest.mark.usefixtures("_accounting")
def test_drill_of_a_train_on_a_slurm_that_is_set_up_in_another_way(fresh_slurm, tmp_path: Path) -> None:
    """Accounting, other partitions, a prolog and an epilog, no requeue; a train that trains, one that never does."""
    sandbox: Sandbox = fresh_slurm(nodes=4, accounting=True)
    hook = tmp_path / "hook"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    text = sandbox.conf.read_text().replace("=main", "=batch").replace("=cpu", "=debug").replace("Epilog=/bin/true", "")
    sandbox.conf.write_text(f"{text}JobRequeue=0\nPrologFlags=Alloc\nProlog={hook}\nEpilog={hook}\n")
    for target in ("controller", *sandbox.record.spec.node_names):
        sandbox.fault(target, FaultKind.RESTART)
    with trains_on(sandbox) as trains:
        until(lambda: {node.state for node in trains.app.slurm.nodes()} == {"IDLE"})
        for name, text in read_table(__file__, "trains").items():
            (tmp_path / f"{name}.toml").write_text(text)
        good, page = run(trains.site, tmp_path / "good.toml", "--html", str(tmp_path / "card.html"))
        assert (good["wrong"], good["action"], page) == ([], "continue", 0)
        assert good["cause"] in (tmp_path / "card.html").read_text()
        mute, code = run(trains.site, tmp_path / "mute.toml", "--timeout", "15s")
        assert (mute["wrong"], code) == (["not drilled"], 1)
        assert mute["why"].startswith("no step, or none that opsctl finds in its log after 15s")
        report = [sys.executable, "-P", "-m", "opsctl", "--site", str(trains.site), "report", "drill-good-rank-killed"]
        shown = subprocess.run(report, capture_output=True, text=True, check=True).stdout
        assert "training after" in shown
        assert "rank-killed" in shown


def run(site: Path, file: Path, *words: str) -> tuple[dict[str, Any], int]:
    """Drill a train by a killed rank; return the score, and the exit code."""
    argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(site), "drill", str(file), "--fault", "rank-killed"]
    done = subprocess.run([*argv, *words, "--json"], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return json.loads(done.stdout)[0], done.returncode


def _is_of(environ: Path, state: Path) -> bool:
    try:
        return os.fsencode(state) in environ.read_bytes()
    except OSError:
        return False
