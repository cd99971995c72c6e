"""The table of faults, the score of a drill, and which trains may be drilled."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opsctl.alerts.alert_history import AlertEvent
from opsctl.cli import cli
from opsctl.cli.drill import DATA
from opsctl.cli.drill.run_drill import judge
from opsctl.diagnosis.causes import CauseKind, causes
from opsctl.guard.end_record import Action, Outcome
from opsctl.report.contents import AttemptReport
from opsctl.sandbox.faults import SHELL, read_faults
from opsctl.state.events import AttemptFinalized, Event
from opsctl.watchdogs import WATCHDOGS
from tests.support.cases import read_table
from tests.support.made_events import make_diagnosed
from tests.support.made_reports import BEGIN

FAULTS = read_faults()
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "drill.md"


@pytest.mark.parametrize("case", read_table(__file__, "score"), ids=lambda case: case["id"])
def test_score(case: dict[str, Any]) -> None:
    events: list[Event] = []
    for number, end in enumerate(case.get("ends", ())):
        named = {"attempt": f"1_1.{number}", "at": (BEGIN + timedelta(seconds=end["at"])).isoformat()}
        if "cause" in end:
            events.append(make_diagnosed(**named, cause=end["cause"], cause_kind=end["kind"]))
        outcome = end.get("outcome", "crashed")
        events.append(AttemptFinalized(**named, outcome=outcome, action=end["action"], why=""))
    alerts = [
        AlertEvent(at=BEGIN + timedelta(seconds=row["at"]), severity="critical", key=row["key"], text="", is_worse=True)
        for row in case.get("alerts", ())
    ]
    last, *later = case.get("steps", [27])
    score = judge(
        FAULTS[case["fault"]],
        BEGIN,
        events=events,
        alerts=alerts,
        channels=case.get("channels", ()),
        attempts=[make_attempt(last_step=last), *(make_attempt(first_step=first) for first in later)],
        back_s=case.get("back"),
    )
    assert (score.noticed_s, score.steps_lost) == (case.get("noticed"), case.get("lost"))
    assert list(score.wrong) == case.get("wrong", [])


def make_attempt(first_step: int | None = None, last_step: int | None = None) -> AttemptReport:
    return AttemptReport(
        attempt="1_1.0", began=BEGIN, ended=BEGIN, first_step=first_step, last_step=last_step, buckets={}
    )


def test_table_names_what_exists() -> None:
    known = {cause.name for cause in causes()} | {*CauseKind, *Outcome}
    programs = {"$OPSCTL", "true", "scancel", *re.findall(r"^(\w+)\(\) \{", SHELL.read_text(), re.MULTILINE)}
    for fault in FAULTS.values():
        assert set(fault.causes) <= known
        assert set(fault.action) <= {*Action, ""}
        assert set(fault.alerts) <= set(WATCHDOGS)
        assert {fault.inject.split()[0], fault.undo.split()[0].rstrip(";")} <= programs, fault


def test_page_shows_the_table() -> None:
    page = PAGE.read_text()
    missing = [
        fault.name for fault in FAULTS.values() if f"| `{fault.name}` | {fault.says} | {fault.source} |" not in page
    ]
    assert missing == []


def drill(tmp_path: Path, *words: str, setup: str = "true") -> str:
    path = tmp_path / "big.toml"
    fields = 'name = "big"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "5"\n'
    path.write_text(f'{fields}[setup]\nlines = ["{setup}"]\n')
    result = CliRunner().invoke(cli, ["drill", str(path), *words])
    return result.output + str(result.exception or "")


def test_train_without_the_mark_is_refused(tmp_path: Path) -> None:
    assert "big is not marked as a drill" in drill(tmp_path, "--dry-run")
    assert "is not marked" in drill(tmp_path, "--dry-run", "--confirm", "bigger")


def test_dry_run_shows_only_what_harms_nobody_else(tmp_path: Path) -> None:
    shown = drill(tmp_path, "--dry-run", "--confirm", "big")
    rows = [line.split()[:2] for line in shown.splitlines()[1:]]
    assert rows == [[fault.name, fault.touches] for fault in FAULTS.values() if fault.touches in {"process", "job"}]
    assert "no fault 'node-dead' for this train" in drill(tmp_path, "--confirm", "big", "--fault", "node-dead")


def test_comment_makes_no_train_breakable(tmp_path: Path) -> None:
    words = ("--dry-run", "--confirm", "big", "--fault", "node-dead")
    line = f". {DATA / 'breakable.sh'}"
    assert drill(tmp_path, *words, setup=line) != drill(tmp_path, *words, setup=f"# {line}")


def test_train_of_the_embedded_trainer_needs_no_command() -> None:
    file = Path(__file__).parents[3] / "examples" / "tiny-gpt.toml"
    result = CliRunner().invoke(cli, ["drill", str(file), "--confirm", "tiny-gpt", "--dry-run"])
    assert result.output.splitlines()[1].startswith("rank-killed")


def test_acceptance_has_the_same_trials_as_table_json_and_page(tmp_path: Path) -> None:
    words = ("--confirm", "big", "--acceptance", "--dry-run")
    rows = [line.split("|")[1].strip() for line in drill(tmp_path, *words).splitlines()[2:]]
    page = tmp_path / "acceptance.html"
    trials = json.loads(drill(tmp_path, *words, "--json", "--html", str(page)))
    assert [trial["trial"] for trial in trials] == rows == re.findall(r"<tr><td>([\w-]+)</td>", page.read_text())


def test_sandbox_drills_any_train_by_all_faults_but_those_that_are_named(tmp_path: Path) -> None:
    shown = drill(tmp_path, "--confirm", "big", "--sandbox", "--dry-run")
    rows = [line.split()[0] for line in shown.splitlines() if line.split()[0] in FAULTS]
    assert rows == [fault.name for fault in FAULTS.values() if not fault.only_named]
