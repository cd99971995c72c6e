"""`opsctl status` without an answer: the real squeue and a port without a controller, and an unreadable root."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opsctl.alerts.ledger import AlertLedger
from opsctl.app import build
from opsctl.base.errors import InputError, RunDirError, Unreachable
from opsctl.base.findings import Severity
from opsctl.cli import cli
from opsctl.cli.top.trains_feed import TrainsFeed
from opsctl.dash.collect_site import collect_site
from opsctl.guard.attempt_record import Start, write_start
from opsctl.host.system import SystemClock
from opsctl.settings.alerts import AlertSettings
from opsctl.state import switches
from opsctl.state.events import AttemptFinalized, AttemptStarted, SubmitRefused, Submitted, Submitting
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.state.switches import Switch
from opsctl.trainer.contract import Heartbeat, Phase, to_json
from tests.support.findings import make_finding
from tests.support.slurms import SLURM_CONF

pytestmark = pytest.mark.skipif(not shutil.which("squeue"), reason="needs Slurm's commands")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A train in its second attempt, with a checkpoint two hours old."""
    (tmp_path / "slurm.conf").write_text(SLURM_CONF)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("OPSCTL_ROOT", str(tmp_path / "trains"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run = RunDir(tmp_path / "trains" / "gpt")
    run.create()
    run.config.write_text('[slurm]\ntime_limit = "60"\n')
    journal, now = Journal(run, SystemClock()), datetime.now(UTC)
    journal.append(Submitting(nonce="n1", tasks=5, after=""))
    journal.append(Submitted(nonce="n1", array="12"))
    journal.append(AttemptStarted(attempt="12_1.0", nodes="node001"))
    journal.append(AttemptFinalized(attempt="12_1.0", outcome="deadline", action="continue", why="the time was over"))
    journal.append(AttemptStarted(attempt="12_2.0", nodes="node002"))
    start = Start(
        attempt="12_2.0", job="13", nodes="node002", node_count=1, gpus="", node="node002", at=now, checkpoint=0
    )
    write_start(run, run.attempt("12_2.0"), start)
    heartbeat = Heartbeat(
        attempt="12_2.0",
        node="node002",
        rank=0,
        phase=Phase.TRAIN,
        step=70,
        at=now.timestamp(),
        limit_s=60,
        loss=2.5,
        last_steps=150,
        checkpoint_step=50,
    )
    (run.heartbeat / "train.json").write_text(to_json(heartbeat))
    saved = run.checkpoints / "step-0000050"
    saved.mkdir()
    (saved / "weights").write_text("of a foreign trainer")
    ago = (now - timedelta(hours=2)).timestamp()
    for path in (saved / "weights", saved):
        os.utime(path, (ago, ago))
    switches.arm(run, Switch.SAVE, why="before the maintenance")
    return run


def status(*words: str) -> Result:
    return CliRunner().invoke(cli, ["status", *words], standalone_mode=False, prog_name="opsctl")


def test_status_shows_the_run_directory(run: RunDir) -> None:
    result = status("gpt")
    assert result.return_value == 75
    first, *lines = result.stdout.splitlines()
    assert first.startswith("Slurm does not answer: squeue got no answer: ")
    assert first.endswith("; showing what the run directories record")
    assert result.stdout.count("Slurm does not answer") == 1
    fields = {line[2:14].strip(): line[14:].strip() for line in lines}
    assert lines[0].split() == ["gpt", "unknown"]
    assert fields["began"].startswith("12_2.0 on node002, ")
    assert fields["progress"].startswith("step 70 of 150")
    assert fields["loss"] == "2.5"
    assert fields["checkpoint"].startswith("at step 50, 2h")
    assert fields["last attempt"].startswith("12_1.0 deadline ")
    assert "before the maintenance" in fields["save switch"]


def test_json_queue_is_null_and_exit_code_is_75(run: RunDir) -> None:
    result = status("--json")
    assert isinstance(result.exception, Unreachable)
    assert result.exception.exit_code == 75
    [status_row] = json.loads(result.stdout)
    assert (status_row["state"], status_row["running"], status_row["waiting"], status_row["notes"]) == (
        "unknown",
        None,
        None,
        [],
    )
    assert status_row["slurm"] == result.exception.message
    assert (status_row["begun"]["attempt"], status_row["progress"]["step"], status_row["last_attempt"]["attempt"]) == (
        "12_2.0",
        70,
        "12_1.0",
    )


def test_status_shows_since_when_slurm_is_silent(run: RunDir) -> None:
    ledger = AlertLedger(SiteDir.of(run.path.parent), SystemClock(), AlertSettings(slurm_minutes=0))
    ledger.record([make_finding(key="slurm/site", severity=Severity.OK, summary="Slurm answers")])
    ledger.record([make_finding(key="slurm/site", severity=Severity.UNKNOWN, summary="Slurm: squeue got no answer")])
    since = next(iter(ledger.read().entries.values())).since
    assert f"Slurm does not answer, since {since:%Y-%m-%d %H:%M} UTC: squeue " in status().stdout


def test_train_never_submitted_is_shown_as_such(run: RunDir) -> None:
    RunDir(run.path.parent / "new").create()
    (run.path.parent / "new" / "train.toml").write_text("")
    assert {row["train"]: row["state"] for row in json.loads(status("--json").stdout)} == {
        "gpt": "unknown",
        "new": "not submitted",
    }


def test_two_trains_have_a_line_each_or_a_card(run: RunDir) -> None:
    RunDir(run.path.parent / "new").create()
    (run.path.parent / "new" / "train.toml").write_text("")
    away, head, *lines = status().stdout.splitlines()
    assert (away[:12], head.split()[:2], [line.split()[0] for line in lines]) == (
        "Slurm does n",
        ["train", "state"],
        ["gpt", "new"],
    )
    assert "70" in lines[0].split()
    assert "armed by" in lines[0]
    assert "  progress " in status("--full").stdout


def test_no_trains_need_no_slurm(run: RunDir) -> None:
    shutil.rmtree(run.path)
    assert (status().return_value, "no trains" in status().stdout) == (0, True)


def test_unknown_queue_is_not_an_empty_queue(run: RunDir) -> None:
    """The train has not ended, no submission was lost and no task is missing."""
    journal = Journal(run, SystemClock())
    journal.append(AttemptFinalized(attempt="12_2.0", outcome="deadline", action="continue", why="the time was over"))
    journal.append(Submitting(nonce="n2", tasks=5, after="12"))
    [status_row] = json.loads(status("--json").stdout)
    assert (status_row["state"], status_row["begun"], status_row["notes"]) == ("unknown", None, [])
    journal.append(SubmitRefused(nonce="n2", why="no"))
    assert json.loads(status("--json").stdout)[0]["state"] == "unknown"


class EnoughPages(Exception):
    """Ends `status --watch`."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "trains").touch()
    site = tmp_path / "site.toml"
    site.write_text(f"root = '{tmp_path}/trains'\n")
    monkeypatch.setenv("OPSCTL_SITE", str(site))
    return site


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["digest"], ["publish"]])
def test_command_refuses_an_unreadable_root(site: Path, words: list[str]) -> None:
    with pytest.raises(RunDirError, match="trains: Not a directory"):
        cli.main(words, standalone_mode=False)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_watched_status_goes_on(
    site: Path, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, pauses = site.parent / "trains", list[float]()

    def sleep(_: object, seconds: float) -> None:
        root.unlink(missing_ok=True)  # the next look finds a root without trains
        pauses.append(seconds)
        if len(pauses) > 1:
            raise EnoughPages

    monkeypatch.setattr("opsctl.host.system.SystemClock.sleep", sleep)
    with pytest.raises(EnoughPages):
        cli.main(["status", "--watch", "--every", "7s", *options], standalone_mode=False)
    printed = capsys.readouterr()
    assert pauses == [7.0, 7.0]
    assert "trains: Not a directory" in printed.err
    assert printed.out.startswith("[]" if options else "no trains below")


def test_page_keeps_the_trains_of_before(site: Path) -> None:
    with pytest.raises(RunDirError, match="trains: Not a directory"):  # the refresher then keeps the view
        collect_site(build(site))


def test_top_names_the_unreadable_root(site: Path) -> None:
    assert "trains: Not a directory" in TrainsFeed(build(site)).read().problem


def test_root_of_the_first_launch_need_not_exist(site: Path) -> None:
    (site.parent / "trains").unlink()
    assert TrainsFeed(build(site)).read().problem == ""


def test_machine_without_slurm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CONF", "OPSCTL_SITE", "OPSCTL_ROOT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": tmp_path, "XDG_STATE_HOME": tmp_path, "PATH": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(
        InputError, match="no Slurm is configured here: no sinfo on PATH, and no sandbox is up"
    ) as caught:
        build().engine_env  # noqa: B018
    assert "to try opsctl: opsctl sandbox up" in caught.value.hint
