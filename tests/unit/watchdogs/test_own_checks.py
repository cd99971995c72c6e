"""Watchdogs by configuration, with real programs and files."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from opsctl.base.findings import Finding, Severity
from opsctl.settings.watch import CheckTable
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs import WATCHDOGS
from tests.support.cases import read_cases
from tests.support.watch_context import Bench

TICK = timedelta(minutes=10)


def configure(bench: Bench, **fields: Any) -> None:
    bench.config = {"checks": ({"name": "mine", **fields},)}


def judge(bench: Bench) -> Finding:
    return bench.judge("train_checks", after=TICK)


@pytest.mark.parametrize(*read_cases(__file__, "plugin_decides_the_severity", severity=Severity))
def test_plugin_decides_the_severity(bench: Bench, script: str, severity: Severity, text: str) -> None:
    configure(bench, kind="command", command=("sh", "-c", script), timeout_seconds=0.5, remedy="call anna")
    finding = judge(bench)
    assert (finding.key, finding.severity, finding.summary) == ("train_checks/gpt/mine", severity, f"gpt: mine: {text}")
    assert finding.remedy == ("" if severity is Severity.OK else "call anna")


def test_missing_program_is_unknown(bench: Bench) -> None:
    configure(bench, kind="command", command=("/nowhere/check",))
    assert judge(bench).severity is Severity.UNKNOWN


def test_command_gets_the_name_of_the_train(bench: Bench) -> None:
    configure(bench, kind="command", command=("echo", "{train}"))
    assert judge(bench).summary == "gpt: mine: gpt"


@pytest.mark.parametrize(*read_cases(__file__, "number_is_compared_with_its_limits", severity=Severity))
def test_number_is_compared_with_its_limits(bench: Bench, output: str, severity: Severity, text: str) -> None:
    (bench.run.path / "number").write_text(output)
    configure(bench, kind="number", file="number", warning_above=50.0, critical_below=0.0, unit="C")
    finding = judge(bench)
    assert (finding.severity, finding.summary) == (severity, f"gpt: mine: {text}")


def test_bad_line_is_reported_for_an_hour(bench: Bench) -> None:
    bench.write_log("error before the first cycle")
    configure(bench, kind="log", file=str(bench.run.main_log), pattern="error", severity="critical")
    assert judge(bench).severity is Severity.OK
    bench.write_log("fine", "error 7", "fine")
    finding = judge(bench)
    assert (finding.severity, finding.evidence) == (Severity.CRITICAL, ("error 7",))
    assert finding.summary == "gpt: mine: error 7"
    assert bench.judge("train_checks", after=timedelta(minutes=49)).severity is Severity.CRITICAL
    assert bench.judge("train_checks", after=timedelta(minutes=12)).severity is Severity.OK


def test_missing_log_is_unknown(bench: Bench) -> None:
    configure(bench, kind="log", file="absent.log", pattern="error")
    assert judge(bench).severity is Severity.UNKNOWN


def test_command_of_another_users_train_is_not_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(bench, kind="command", command=("touch", str(bench.root / "ran")))
    monkeypatch.setattr(RunDir, "is_ours", property(lambda run: False))
    assert judge(bench).summary == "no checks are configured"
    assert not (bench.root / "ran").exists()


def test_site_has_checks_of_its_own(bench: Bench) -> None:
    bench.site = {"watch": {"checks": ({"name": "lic", "kind": "command", "command": ("false",)},)}}
    context = bench.make_context()
    watchdog = WATCHDOGS["site_checks"]
    [finding] = watchdog.judge(watchdog.probe(replace(context), None), context.now)
    assert (finding.key, finding.severity) == ("site_checks/site/lic", Severity.WARNING)


@pytest.mark.parametrize(*read_cases(__file__, "incomplete_check_is_refused"))
def test_incomplete_check_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        CheckTable.model_validate({"name": "mine", **fields})
