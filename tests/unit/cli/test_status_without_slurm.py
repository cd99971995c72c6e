"""`opsctl status` while Slurm does not answer: Slurm's real squeue, and a port at which no controller listens."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opsctl.alerts.ledger import AlertLedger
from opsctl.cli import cli
from opsctl.errors import Unreachable
from opsctl.guard.attempt_record import Start, write_start
from opsctl.host.system import SystemClock
from opsctl.model import Finding, Level
from opsctl.settings.alerts import AlertSettings
from opsctl.state import switches
from opsctl.state.journal import EventKind, Journal
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.state.switches import Switch
from opsctl.trainer.contract import Heartbeat, Phase, to_json

pytestmark = pytest.mark.skipif(not shutil.which("squeue"), reason="needs Slurm's commands")

SLURM_CONF = """\
ClusterName=gone
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
AuthType=auth/none
MessageTimeout=1
NodeName=n1
PartitionName=p Nodes=n1
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A train whose second attempt trains, of which a checkpoint is two hours old."""
    (tmp_path / "slurm.conf").write_text(SLURM_CONF)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("OPSCTL_ROOT", str(tmp_path / "trains"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run = RunDir(tmp_path / "trains" / "gpt")
    run.create()
    run.config.write_text('[slurm]\ntime_limit = "60"\n')
    journal, now = Journal(run, SystemClock()), datetime.now(UTC)
    journal.append(EventKind.SUBMITTING, nonce="n1", tasks=5, after="")
    journal.append(EventKind.SUBMITTED, nonce="n1", array="12")
    journal.append(EventKind.ATTEMPT_STARTED, attempt="12_1.0", nodes="node001")
    journal.append(
        EventKind.ATTEMPT_FINALIZED, attempt="12_1.0", outcome="deadline", action="continue", why="the time was over"
    )
    journal.append(EventKind.ATTEMPT_STARTED, attempt="12_2.0", nodes="node002")
    start = Start(
        attempt="12_2.0", job="13", nodes="node002", node_count=1, gpus="", node="node002", at=now, checkpoint=0
    )
    write_start(run, run.attempt("12_2.0"), start)
    heartbeat = Heartbeat(
        attempt="12_2.0", node="node002", rank=0, phase=Phase.TRAIN, step=70, at=now.timestamp(), limit_s=60, loss=2.5,
        last_steps=150, checkpoint_step=50,
    )  # fmt: skip
    (run.heartbeat / "train.json").write_text(to_json(heartbeat))
    saved = run.checkpoints / "step-0000050"
    saved.mkdir()
    ago = (now - timedelta(hours=2)).timestamp()
    os.utime(saved, (ago, ago))
    switches.arm(run, Switch.SAVE, why="before the maintenance")
    return run


def status(*words: str) -> Result:
    return CliRunner().invoke(cli, ["status", *words], standalone_mode=False, prog_name="opsctl")


def test_what_the_run_directory_knows_is_shown_and_one_line_says_that_slurm_does_not_answer(run: RunDir) -> None:
    done = status("gpt")
    assert done.return_value == 75
    first, *lines = done.stdout.splitlines()
    assert first.startswith("Slurm does not answer: squeue got no answer: ")
    assert first.endswith("; showing what the run directories record")
    assert done.stdout.count("Slurm does not answer") == 1
    told = {line[2:14].strip(): line[14:].strip() for line in lines}
    assert lines[0].split() == ["gpt", "unknown"]
    assert told["began"].startswith("12_2.0 on node002, ")
    assert told["progress"].startswith("step 70 of 150")
    assert told["loss"] == "2.5"
    assert told["checkpoint"].startswith("at step 50, 2h")
    assert told["last attempt"].startswith("12_1.0 deadline ")
    assert "before the maintenance" in told["save switch"]


def test_the_queue_is_null_in_json_and_the_exit_code_says_try_again(run: RunDir) -> None:
    done = status("--json")
    assert isinstance(done.exception, Unreachable)
    assert done.exception.exit_code == 75
    [seen] = json.loads(done.stdout)
    assert (seen["state"], seen["running"], seen["waiting"], seen["notes"]) == ("unknown", None, None, [])
    assert seen["slurm"] == done.exception.message
    assert (seen["begun"]["attempt"], seen["progress"]["step"], seen["last_attempt"]["attempt"]) == (
        "12_2.0",
        70,
        "12_1.0",
    )


def test_since_when_it_does_not_answer_is_told_where_the_watch_has_found_it(run: RunDir) -> None:
    ledger = AlertLedger(SiteDir.of(run.path.parent), SystemClock(), AlertSettings(unknown_minutes=0))
    ledger.record([Finding(key="slurm/site", level=Level.OK, summary="Slurm answers")])
    ledger.record([Finding(key="slurm/site", level=Level.UNKNOWN, summary="Slurm: squeue got no answer")])
    since = next(iter(ledger.read().entries.values())).since
    assert f"Slurm does not answer, since {since:%Y-%m-%d %H:%M} UTC: squeue " in status().stdout


def test_a_train_that_was_never_submitted_is_that_whatever_slurm_says(run: RunDir) -> None:
    RunDir(run.path.parent / "new").create()
    (run.path.parent / "new" / "train.toml").write_text("")
    assert {load["train"]: load["state"] for load in json.loads(status("--json").stdout)} == {
        "gpt": "unknown",
        "new": "not submitted",
    }


def test_where_there_are_no_trains_slurm_is_not_asked(run: RunDir) -> None:
    shutil.rmtree(run.path)
    assert (status().return_value, "no trains" in status().stdout) == (0, True)


def test_a_queue_that_nobody_has_seen_is_not_taken_for_an_empty_one(run: RunDir) -> None:
    """Neither has the train ended, nor was a submission lost, nor are tasks missing."""
    journal = Journal(run, SystemClock())
    journal.append(
        EventKind.ATTEMPT_FINALIZED, attempt="12_2.0", outcome="deadline", action="continue", why="the time was over"
    )
    journal.append(EventKind.SUBMITTING, nonce="n2", tasks=5, after="12")
    [seen] = json.loads(status("--json").stdout)
    assert (seen["state"], seen["begun"], seen["notes"]) == ("unknown", None, [])
    journal.append(EventKind.SUBMIT_REFUSED, nonce="n2", why="no")
    assert json.loads(status("--json").stdout)[0]["state"] == "unknown"
