"""The runs of a train in experiment trackers, from the journal and train.toml."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.alerts.ledger_state import AlertTransition
from opsctl.alerts.message import render_single
from opsctl.base.findings import Severity, Transition
from opsctl.guard.rank import environment_of_rank
from opsctl.host.system import SystemClock
from opsctl.launch.tracker_runs import add_links, tracker_links, tracker_variables
from opsctl.settings.alerts import AlertSettings
from opsctl.state.events import Event, Submitting
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from tests.support.findings import make_finding

HEAD = 'name = "gpt"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "9"\n'


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "gpt")
    run.create()
    run.config.write_text(HEAD)
    return run


def submit(run: RunDir, *nonces: str) -> list[Event]:
    journal = Journal(run, SystemClock())
    for nonce in nonces:
        journal.append(Submitting(nonce=nonce, tasks=3, after=""))
    return journal.events()


def test_ids_are_those_of_the_first_submission(run: RunDir) -> None:
    first = tracker_variables(run, submit(run, "a" * 32), {})
    again = tracker_variables(run, submit(run, "b" * 32), {})
    assert first == again
    assert first["WANDB_RUN_ID"].startswith("gpt-")
    assert first["WANDB_RESUME"] == "allow"
    key = first["COMET_EXPERIMENT_KEY"]
    assert key.isalnum()
    assert 32 <= len(key) <= 50
    assert "MLFLOW_RUN_ID" not in first


def test_new_run_directory_gives_new_ids(run: RunDir, tmp_path: Path) -> None:
    other = RunDir(tmp_path / "elsewhere" / "gpt")
    other.create()
    ids = [
        tracker_variables(train_run, submit(train_run, nonce), {}) for train_run, nonce in ((run, "a"), (other, "b"))
    ]
    assert ids[0]["WANDB_RUN_ID"] != ids[1]["WANDB_RUN_ID"]


def test_id_of_the_user_is_left_alone(run: RunDir) -> None:
    events = submit(run, "a")
    run.config.write_text(HEAD + "[environment]\nWANDB_RUN_ID = 'mine'\nWANDB_RESUME = 'must'\n")
    variables = tracker_variables(run, events, {"COMET_EXPERIMENT_KEY": "theirs"})
    assert variables == {"TRAIN_TRACKER_RUNS": ""}


def test_setting_switches_the_ids_off(run: RunDir) -> None:
    events = submit(run, "a")
    run.config.write_text(HEAD + "[trackers]\ncontinue_runs = false\n")
    assert tracker_variables(run, events, {}) == {}


@pytest.mark.parametrize(("text", "expected"), [("0123abcd\n", "0123abcd"), ("$(id)\n", None), ("", None)])
def test_recorded_run_of_mlflow_is_continued(run: RunDir, text: str, expected: str | None) -> None:
    run.mlflow_run.write_text(text)
    assert tracker_variables(run, submit(run, "a"), {}).get("MLFLOW_RUN_ID") == expected


def test_ids_are_for_rank_0_alone(run: RunDir) -> None:
    env = {"HOME": "/h", **tracker_variables(run, submit(run, "a"), {})}
    assert environment_of_rank(env, "0") == env
    assert {"WANDB_RUN_ID", "COMET_EXPERIMENT_KEY"} <= env.keys() - environment_of_rank(env, "1").keys()
    assert environment_of_rank({**env, "WANDB_RUN_ID": "of the setup lines"}, "1")["WANDB_RUN_ID"]


def test_link_is_known_with_entity_and_project(run: RunDir) -> None:
    events = submit(run, "a")
    assert tracker_links(run, events) == ()
    run.config.write_text(HEAD + "[environment]\nWANDB_ENTITY = 'team'\nWANDB_PROJECT = 'big'\n")
    [link] = tracker_links(run, events)
    assert link == f"https://wandb.ai/team/big/runs/{tracker_variables(run, events, {})['WANDB_RUN_ID']}"
    run.config.write_text(run.config.read_text() + "WANDB_MODE = 'offline'\n")
    assert tracker_links(run, events) == ()


def test_link_of_comet_needs_workspace_and_project(run: RunDir) -> None:
    events = submit(run, "a")
    run.config.write_text(HEAD + "[environment]\nCOMET_WORKSPACE = 'team'\nCOMET_PROJECT_NAME = 'big'\n")
    [link] = tracker_links(run, events)
    assert link.startswith("https://www.comet.com/team/big/")


def test_alert_carries_the_link(run: RunDir) -> None:
    events = submit(run, "a")
    run.config.write_text(HEAD + "[environment]\nWANDB_ENTITY = 'team'\nWANDB_PROJECT = 'big'\n")
    findings = [make_finding(f"loss/{severity}", severity, summary="x", evidence=("y",)) for severity in Severity]
    linked = [finding for finding in add_links(findings, run, events) if len(finding.lines) == 2]
    assert {finding.severity for finding in linked} == set(Severity) - {Severity.OK}
    assert linked[0].lines[0].startswith("run: https://wandb.ai/team/big/runs/gpt-")


def test_message_shows_the_link_before_much_evidence(run: RunDir) -> None:
    events = submit(run, "a")
    run.config.write_text(HEAD + "[environment]\nWANDB_ENTITY = 'team'\nWANDB_PROJECT = 'big'\n")
    held = make_finding(
        key="failures/gpt", severity=Severity.CRITICAL, summary="held", train="gpt", evidence=tuple(map(str, range(8)))
    )
    [finding] = add_links([held], run, events)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    transition = Transition(id="0123456789ab.1", finding=finding, before=Severity.OK, at=at)
    message = render_single(AlertTransition(transition=transition, opened=at), AlertSettings())
    assert f"  run: {tracker_links(run, events)[0]}\n" in message.body
    assert "and 4 more lines" in message.body
