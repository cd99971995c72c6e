"""Losses by cause, a report that ends early, and a report of a copied run directory."""

import json
import os
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.dash.pages import read_asset
from opsctl.diagnosis.causes import CauseKind, causes
from opsctl.guard.end_record import Outcome, date_last_output
from opsctl.report.contents import FIRST, OWN, Reliability, Report
from opsctl.report.formats import END_GROUPS, cause_rows, find_end_group, markdown
from opsctl.report.html_page import render_page
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from tests.support.cases import read_cases
from tests.support.made_reports import BEGIN, SecondsClock, Train, make_rough_train

END = 10_000.0


def read_causes(report: Report) -> dict[str, dict[str, float]]:
    return {
        cause.cause: {str(bucket): round(spent_s) for bucket, spent_s in cause.buckets.items() if spent_s > 0.5}
        for cause in report.causes
    }


def test_losses_are_added_up_by_cause_and_phase(tmp_path: Path) -> None:
    assert read_causes(make_rough_train(tmp_path).report(END)) == {
        "node-failed": {"hang until noticed": 300, "done twice": 500, "start-up": 120, "queue": 60},
        FIRST: {"queue": 600, "start-up": 120},
        OWN: {"slow steps": 50, "checkpoints": 70},
    }


@pytest.mark.parametrize("first_s", [0, 40])
def test_wait_after_an_attempt_of_no_length_follows_from_it(tmp_path: Path, first_s: int) -> None:
    train = Train(tmp_path)
    train.submit(0)
    train.start(100, "7_1.0")
    train.end(100 + first_s, Outcome.NODE_FAILED)
    train.start(700, "7_2.0")
    train.end(train.steps(720, 1, 50), Outcome.FINISHED)
    losses = read_causes(train.report(END))
    assert losses[FIRST] == {"queue": 100} | ({"start-up": first_s} if first_s else {})
    assert losses["node-failed"] == {"queue": 600 - first_s, "start-up": 20}


def test_causes_are_all_losses(tmp_path: Path) -> None:
    report = make_rough_train(tmp_path).report(END, since=700, until=1500)
    assert sum(cause.lost_s for cause in report.causes) == pytest.approx(sum(loss_s for _, loss_s in report.losses))


def test_diagnosed_cause_counts_before_the_outcome(tmp_path: Path) -> None:
    train = make_rough_train(tmp_path)
    end = train.run.attempt("7_1.0").end
    end.write_text(json.dumps({**json.loads(end.read_text()), "cause": "gpu-fell-off", "kind": "node"}))
    report = train.report(END)
    assert "gpu-fell-off" in read_causes(report)
    assert next(cause_rows(report))[:3] == ("gpu-fell-off", "1", "16m 20s")
    assert "| gpu-fell-off | 1 | 16m 20s |" in markdown(report)
    end.write_text(json.dumps({**json.loads(end.read_text()), "cause": "end"}))  # nothing beyond Slurm's word
    assert not {"gpu-fell-off", "end"} & set(read_causes(train.report(END)))


def test_report_ends_at_until(tmp_path: Path) -> None:
    train = make_rough_train(tmp_path)
    report = train.report(END, until=1220)
    assert (report.wall_s, report.end) == (1220, BEGIN + timedelta(seconds=1220))
    assert [attempt.attempt for attempt in report.attempts] == ["7_1.0"]
    assert sum(period.seconds for period in report.periods) == pytest.approx(1220)
    with pytest.raises(InputError, match="before the report begins"):
        train.report(END, since=800, until=700)


def test_train_has_high_confidence(tmp_path: Path) -> None:
    assert make_rough_train(tmp_path).report(END).confidence is Reliability.HIGH


def write_rank_log(train: Train, at: float) -> None:
    """Write a rank's log, whose last line comes at this time, and the record of that time."""
    logs = train.run.attempt_logs("7_1.0")
    logs.mkdir(parents=True)
    (logs / "0.log").touch()
    os.utime(logs / "0.log", (BEGIN.timestamp() + at,) * 2)
    end = train.run.attempt("7_1.0").end
    last_output = date_last_output(train.run, train.run.attempt("7_1.0"))
    end.write_text(json.dumps({**json.loads(end.read_text()), "last_output": str(last_output)}))


@pytest.mark.parametrize("is_recorded", [True, False])
def test_copied_run_directory_has_the_same_report(tmp_path: Path, is_recorded: bool) -> None:
    train = make_rough_train(tmp_path / "own", stamps=False)
    if is_recorded:
        write_rank_log(train, 1760)
    before = train.report(END)
    copy = Train(tmp_path / "copy", stamps=False)
    shutil.rmtree(copy.run.path)
    shutil.copytree(train.run.path, copy.run.path, copy_function=shutil.copy)
    copy.journal = Journal(RunDir(copy.run.path), SecondsClock())
    assert copy.report(END).buckets == before.buckets
    assert AttemptFinalized in {type(event) for event in copy.journal.events()}


def test_page_names_cause_and_reason(tmp_path: Path) -> None:
    page = render_page(make_rough_train(tmp_path).report(END))
    assert "Lost by cause" in page and "<td>node-failed</td>" in page
    assert '<small class="why">Slurm says NODE_FAIL</small>' in page


def test_colours_of_attempts_name_the_part_that_failed(tmp_path: Path) -> None:
    report = make_rough_train(tmp_path).report(END)
    code = next(cause.name for cause in causes() if cause.kind == "code")
    first, *rest = report.attempts
    attempts = (*rest, replace(first, outcome="crashed", cause=code), first)
    page = render_page(replace(report, attempts=attempts))
    assert "ended by hardware: node, GPU or network" in page
    assert '<span class="key hardware"></span>node-failed' in page
    assert '<span class="key software"></span>crashed' in page
    assert "broke off without a known cause" not in page


def test_every_class_of_causes_has_a_group() -> None:
    groups = {kind: find_end_group(kind.value, "crashed") for kind in CauseKind}
    assert [kind for kind, group in groups.items() if group == "unknown"] == []
    assert {find_end_group("", outcome.value) for outcome in Outcome} <= END_GROUPS.keys()


@pytest.mark.parametrize(*read_cases(__file__, "end_without_a_diagnosis_is_grouped_by_its_outcome"))
def test_end_without_a_diagnosis_is_grouped_by_its_outcome(outcome: str, group: str) -> None:
    assert find_end_group("", outcome) == group


@pytest.mark.parametrize("group", END_GROUPS)
def test_every_group_has_a_colour(tmp_path: Path, group: str) -> None:
    for style in (render_page(make_rough_train(tmp_path).report(END)), read_asset("dash.css")):
        assert f"rect.{group} " in style
        assert f"--{group}: #" in style
