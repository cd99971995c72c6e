"""Runs read from TensorBoard, W&B and tables. The binary files are written by the trackers' own libraries."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.base.errors import InputError
from opsctl.report.log_report import report_log
from opsctl.telemetry.progress.read_log import read_summary
from opsctl.telemetry.progress.tracker_log import find_field
from tests.support.cases import read_cases

CORPUS = Path(__file__).parents[3] / "corpus" / "trackers"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [(step, 1_700_000_000 + 10 * step, 9 - step / 10) for step in range(1, 11)]


def test_tensorboard_directory_is_a_run_with_a_restart():
    summary = read_summary(CORPUS / "tensorboard")
    assert [list(part.steps) for part in summary.parts] == [list(range(1, 25)), list(range(21, 41))]
    assert {step_s for part in summary.parts for step_s in part.step_seconds} == {10.0}
    assert [part.first_stamp for part in summary.parts] == [1_699_999_990, 1_700_000_580]
    assert set(summary.curves) == {"grad_norm", "lr", "tflops"}
    assert summary.loss.points()[-1].mean == pytest.approx(7.6)


def test_tensor_of_one_float_is_read():
    assert {point.mean for point in read_summary(CORPUS / "tensorboard").curves["tflops"].points()} == {150.0}


def test_report_of_tensorboard_counts_repeated_steps():
    report = report_log(CORPUS / "tensorboard", None, NOW)
    assert [attempt.last_step for attempt in report.attempts] == [24, 40]
    assert report.buckets["done twice"] == pytest.approx(40)
    assert sum(report.buckets.values()) == pytest.approx(report.wall_s)


def test_offline_run_of_wandb_is_read():
    summary = read_summary(CORPUS / "run.wandb")
    assert list(summary.parts[0].steps) == list(range(1, 21))
    assert set(summary.curves) == {"grad_norm", "lr", "tokens_per_s"}
    assert summary.loss.points()[0].mean == pytest.approx(7.99)


@pytest.mark.parametrize("name", ["tensorboard/events.out.tfevents.1699999990.node.1.0", "run.wandb"])
def test_cut_and_broken_files_are_read_as_far_as_whole(tmp_path, name):
    data = (CORPUS / name).read_bytes()
    path = tmp_path / Path(name).name
    whole = read_summary(CORPUS / name).lines
    for size in range(0, len(data), 1499):
        path.write_bytes(data[:size])
        try:
            assert read_summary(path).lines <= whole
        except InputError:
            continue
    for at in range(7, len(data), 1501):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        read_summary(path)


TABLES = {
    "wandb-api.csv": "_step,_timestamp,train/loss,eval/loss\n"
    + "".join(f"{step},{at},{loss},\n" for step, at, loss in ROWS),
    "wandb-page.csv": '"Step","run 7 - train/loss","run 7 - train/loss__MIN","run 7 - _timestamp"\n'
    + "".join(f"{step},{loss},{loss},{at}\n" for step, at, loss in ROWS),
    "tensorboard.csv": "Wall time,Step,Value\n" + "".join(f"{at},{step},{loss}\n" for step, at, loss in ROWS),
    "history.json": json.dumps([{"_step": step, "_timestamp": at, "loss": loss} for step, at, loss in ROWS]),
    "history.jsonl": "\n".join(json.dumps({"global_step": s, "_timestamp": at, "loss": x}) for s, at, x in ROWS),
    "table.json": json.dumps({"columns": ["_step", "_timestamp", "train/lm-loss"], "data": ROWS}),
}


@pytest.mark.parametrize("name", TABLES)
def test_exported_table_is_read(tmp_path, name):
    (tmp_path / name).write_text(TABLES[name])
    report = report_log(tmp_path / name, None, NOW)
    assert (report.step, report.step_s, report.wall_s) == (10, 10.0, pytest.approx(90, abs=11))
    assert report.loss[-1].mean == 8.0


def test_table_without_known_names_is_no_run(tmp_path):
    (tmp_path / "a.csv").write_text("epoch,accuracy\n1,0.5\n")
    with pytest.raises(InputError, match="no iteration lines"):
        report_log(tmp_path / "a.csv", None, NOW)


def test_directory_without_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="not a file"):
        read_summary(tmp_path)


@pytest.mark.parametrize(*read_cases(__file__, "names_of_trackers_are_known"))
def test_names_of_trackers_are_known(name, field):
    assert find_field(name) == field
