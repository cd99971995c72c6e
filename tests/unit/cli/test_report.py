"""`opsctl report` through the command line, and reports of incomplete logs and journals."""

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from opsctl.app import build
from opsctl.base.errors import InputError, OpsctlError
from opsctl.cli import cli
from opsctl.guard.end_record import Outcome
from opsctl.report.formats import attempt_rows, markdown, render_headline
from opsctl.telemetry.progress.effective_time import Bucket
from tests.support.cases import read_cases
from tests.support.made_reports import BEGIN, Train, make_rough_train


def run_report(root: Path, *words: object) -> str:
    site = root / "site.toml"
    site.write_text(f'root = "{root}"\n')
    done = CliRunner().invoke(cli, ["report", *map(str, words)], obj=build(site), standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.output


def read_refusal(root: Path, *words: object) -> str:
    with pytest.raises((OpsctlError, click.UsageError)) as caught:
        run_report(root, *words)
    return caught.value.message


def test_terminal_report(tmp_path: Path) -> None:
    make_rough_train(tmp_path)
    lines = [line.rstrip() for line in run_report(tmp_path, "gpt").splitlines()]
    assert lines[0] == "gpt: 45.2% of 55m 20s was training; largest loss: queue (11m)"
    assert ["training", "25m", "45.2%", 18 * "█"] in [line.split() for line in lines]
    assert any(line.startswith("7_1.0") and "node-failed" in line and "1 to 100" in line for line in lines)


def test_json_buckets_add_up(tmp_path: Path) -> None:
    make_rough_train(tmp_path)
    result = json.loads(run_report(tmp_path, "gpt", "--json"))
    assert set(result["buckets"]) == {bucket.value for bucket in Bucket}
    assert math.isclose(sum(result["buckets"].values()), result["wall_s"])
    assert math.isclose(result["ettr"], 1500 / 3320)
    assert result["attempts"][1]["outcome"] == "finished"


def test_markdown_escapes_text(tmp_path: Path) -> None:
    make_rough_train(tmp_path)
    text = run_report(tmp_path, "gpt", "--markdown")
    assert "| training | 25m | 45.2% |" in text
    assert r"| 7\_1.0 | 2026-03-0" in text  # the day depends on the time zone
    assert r"node\[001-002\]" in text


def test_html_report_is_written(tmp_path: Path) -> None:
    make_rough_train(tmp_path)
    page = tmp_path / "report.html"
    assert run_report(tmp_path, "gpt", "--html", page) == (
        f"{page}: 45.2% of 55m 20s was training; largest loss: queue (11m)\n"
    )
    assert page.read_text().startswith("<!doctype html>")


def test_unwritable_html_file_is_named(tmp_path: Path) -> None:
    make_rough_train(tmp_path)
    assert read_refusal(tmp_path, "gpt", "--html", tmp_path / "no" / "r.html").endswith(
        "r.html: No such file or directory"
    )


@pytest.mark.parametrize(*read_cases(__file__, "invalid_since_is_refused"))
def test_invalid_since_is_refused(tmp_path: Path, since: str, message: str) -> None:
    make_rough_train(tmp_path)
    assert read_refusal(tmp_path, "gpt", "--since", since).startswith(message)


def test_train_never_submitted_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gpt was never submitted: there is nothing to report"):
        Train(tmp_path).report(100)


def test_train_before_its_first_attempt_is_all_queue(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    report = train.report(3600)
    assert (report.buckets[Bucket.QUEUE], report.wall_s, report.ettr, report.ettr_without_queue) == (
        3600,
        3600,
        0,
        None,
    )


def test_running_attempt_ends_now(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    train.start(0, "7_1.0")
    train.steps(60, 1, 10)
    report = train.report(165)
    assert (report.wall_s, report.attempts[0].outcome) == (165, "")
    assert report.buckets[Bucket.UNKNOWN] == pytest.approx(5)  # the step in progress
    assert report.notes == ()
    later = train.report(1000)
    assert later.buckets[Bucket.HANG] == pytest.approx(840)
    assert later.notes == ("7_1.0 has logged no step for 14m: opsctl status shows whether the attempt still runs",)


def test_unfinalized_attempt_ends_at_the_next_start(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    train.start(0, "7_1.0")
    train.steps(60, 1, 10)
    train.start(400, "7_2.0")
    train.steps(460, 1, 20)
    report = train.report(660)
    assert (report.buckets[Bucket.HANG], report.buckets[Bucket.REPEATED]) == (pytest.approx(240), pytest.approx(100))


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress)])
def test_rotated_log_is_read(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    whole = make_rough_train(tmp_path / "whole").report(99999)
    train = make_rough_train(tmp_path / "cut")
    log = train.run.main_log
    lines = log.read_bytes().splitlines(keepends=True)
    log.with_name(f"main_log.txt.1{suffix}").write_bytes(pack(b"".join(lines[:150])))
    log.write_bytes(b"".join(lines[150:]))
    assert train.report(99999).buckets == pytest.approx(whole.buckets)


def test_missing_part_of_a_log_is_unknown(tmp_path: Path) -> None:
    train = make_rough_train(tmp_path)
    train.run.main_log.write_bytes(b"".join(train.run.main_log.read_bytes().splitlines(keepends=True)[150:]))
    report = train.report(99999)
    assert report.notes == (
        "the log of 2 attempts is missing, in whole or in part: the steps in that part are unknown",
    )
    assert report.buckets[Bucket.EFFECTIVE] == pytest.approx(510)  # that step 100 is repeated cannot be known
    assert report.buckets[Bucket.UNKNOWN] == pytest.approx(24 * 60 + 20 + 120 + 490)
    assert sum(report.buckets.values()) == pytest.approx(report.wall_s)


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 5000, b"iteration 5/ |" * 1000, None])
def test_unusable_log_leaves_the_journal(tmp_path: Path, content: bytes | None) -> None:
    train = make_rough_train(tmp_path)
    train.run.main_log.unlink()
    if content is not None:
        train.run.main_log.write_bytes(content)
    report = train.report(99999)
    assert report.buckets[Bucket.QUEUE] == 660
    assert sum(report.buckets.values()) == pytest.approx(3320)
    assert any(note.startswith("no step in the log can be read") for note in report.notes)


def test_clock_jumps_do_not_break_the_sum(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(5000)
    train.start(600, "7_1.0")  # the clock of the node is behind
    train.end(train.steps(700, 1, 20), Outcome.CRASHED)
    train.start(100, "7_2.0")
    train.end(train.steps(950, 21, 30), Outcome.FINISHED)
    report = train.report(6000)
    assert sum(report.buckets.values()) == pytest.approx(report.wall_s)
    assert report.buckets[Bucket.EFFECTIVE] > 0


def test_accounting_supplies_missing_ends(
    tmp_path: Path,
) -> None:
    train = Train(tmp_path)
    train.submit(0)
    train.start(0, "7_1.0")
    train.steps(60, 1, 10)
    train.start(1000, "7_3.0")
    train.end(train.steps(1060, 11, 20), Outcome.FINISHED)
    rows = [
        ("7_1", "NODE_FAIL", 0, 200),
        ("7_2", "NODE_FAIL", 300, 420),
        ("7_3", "COMPLETED", 1000, 1160),
        ("7_4", "PENDING", None, None),
    ]
    begin = BEGIN.timestamp()
    table = "JobID|State|Start|End\n"
    for job, state, start, end in rows:
        times = "|".join("Unknown" if at is None else f"{begin + at:.0f}" for at in (start, end))
        table += f"{job}|{state}|{times}\n"
    sacct = tmp_path / "sacct.txt"
    sacct.write_text(table)
    result = json.loads(run_report(tmp_path, "gpt", "--json", "--sacct", sacct))
    assert [(attempt["attempt"], attempt["outcome"]) for attempt in result["attempts"]] == [
        ("7_1.0", "NODE_FAIL"),
        ("7_2.0", "NODE_FAIL"),
        ("7_3.0", "finished"),
    ]
    spent = {name: seconds for name, seconds in result["buckets"].items() if seconds}
    assert spent == pytest.approx(
        {"training": 200, "start-up": 120 + 120, "hang until noticed": 40, "queue": 100 + 580}
    )


def test_jobs_of_other_trains_are_ignored(tmp_path: Path) -> None:
    make_rough_train(tmp_path)
    begin = BEGIN.timestamp()
    sacct = tmp_path / "sacct.txt"
    sacct.write_text(f"JobID|State|Start|End\n8_1|FAILED|{begin + 100:.0f}|{begin + 200:.0f}\n")
    with pytest.raises(InputError, match="none of the 1 jobs belongs to gpt, whose arrays are 7"):
        run_report(tmp_path, "gpt", "--sacct", sacct)
    sacct.write_text(sacct.read_text() + f"7_9|FAILED|{begin + 100:.0f}|{begin + 200:.0f}\n")
    attempts = [
        attempt["attempt"]
        for attempt in json.loads(run_report(tmp_path, "gpt", "--json", "--sacct", sacct))["attempts"]
    ]
    assert "7_9.0" in attempts and "8_1.0" not in attempts


def test_missing_log_is_named(tmp_path: Path) -> None:
    assert read_refusal(tmp_path, "--log", tmp_path / "none.txt") == f"{tmp_path}/none.txt: No such file or directory"
    assert read_refusal(tmp_path, "--log", tmp_path) == f"{tmp_path}: not a file"
    assert read_refusal(tmp_path, "--log", "/dev/zero") == "/dev/zero: not a file"


def test_new_train_begins_at_its_first_submission(tmp_path: Path) -> None:
    assert make_rough_train(tmp_path).report(99999).begin == BEGIN


def test_training_time_of_unreadable_log_is_unknown(tmp_path: Path) -> None:
    train = make_rough_train(tmp_path)
    train.run.main_log.write_text("a trainer that logs nothing known\n" * 99)
    report = train.report(99999)
    assert (report.ettr, report.ettr_without_queue, report.step) == (None, None, None)
    assert report.buckets[Bucket.START_UP] == 0
    assert "was training is unknown" in render_headline(report)
    assert "0.0" not in render_headline(report)
    assert "0.0%" not in markdown(report)
    assert {row[6] for row in attempt_rows(report)} == {"unknown"}
