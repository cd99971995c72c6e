"""What a user types, and what is said of logs and trains that are not as they should be."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from opsctl.app import build
from opsctl.cli import cli
from opsctl.errors import InputError, OpsctlError
from opsctl.guard.outcome import Outcome
from opsctl.report.formats import render_headline
from opsctl.telemetry.progress.effective_time import Bucket
from tests.support.made_reports import BEGIN, Train, rough


def typed(place: Path, *words: object) -> str:
    site = place / "site.toml"
    site.write_text(f'root = "{place}"\n')
    done = CliRunner().invoke(cli, ["report", *map(str, words)], obj=build(site), standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.output


def refusal(place: Path, *words: object) -> str:
    with pytest.raises((OpsctlError, click.UsageError)) as caught:
        typed(place, *words)
    return caught.value.message


def test_a_page_for_the_terminal(tmp_path: Path) -> None:
    rough(tmp_path)
    lines = [line.rstrip() for line in typed(tmp_path, "gpt").splitlines()]
    assert lines[0] == "gpt: 45.2% of 55m 20s was training; largest loss: queue (11m)"
    assert ["training", "25m", "45.2%", 18 * "█"] in [line.split() for line in lines]
    assert any(line.startswith("7_1.0") and "node-failed" in line and "1 to 100" in line for line in lines)


def test_json_holds_every_bucket_and_they_add_up(tmp_path: Path) -> None:
    rough(tmp_path)
    given = json.loads(typed(tmp_path, "gpt", "--json"))
    assert set(given["buckets"]) == {bucket.value for bucket in Bucket}
    assert math.isclose(sum(given["buckets"].values()), given["wall_s"])
    assert math.isclose(given["ettr"], 1500 / 3320)
    assert given["attempts"][1]["outcome"] == "finished"


def test_markdown_keeps_what_somebody_wrote_as_text(tmp_path: Path) -> None:
    rough(tmp_path)
    text = typed(tmp_path, "gpt", "--markdown")
    assert "| training | 25m | 45.2% |" in text
    assert r"| 7\_1.0 | 2026-03-0" in text  # the day depends on the time zone
    assert r"node\[001-002\]" in text


def test_a_page_is_written_and_what_it_says_is_said(tmp_path: Path) -> None:
    rough(tmp_path)
    page = tmp_path / "report.html"
    assert typed(tmp_path, "gpt", "--html", page) == (
        f"{page}: 45.2% of 55m 20s was training; largest loss: queue (11m)\n"
    )
    assert page.read_text().startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    rough(tmp_path)
    assert refusal(tmp_path, "gpt", "--html", tmp_path / "no" / "r.html").endswith("r.html: No such file or directory")


@pytest.mark.parametrize(
    ("since", "message"),
    [
        ("2999-01-01", "--since 2999-01-01 00:00:00 is in the future"),
        ("soon", "'soon' is not a time"),
        ("", "'' is not a time"),
        ("99999999999999w", "'99999999999999w' is not a time"),
        ("0d", "'0d' is not a time"),
        ("1h", "--since "),
    ],
)
def test_a_since_that_cannot_be_meant_is_refused(tmp_path: Path, since: str, message: str) -> None:
    rough(tmp_path)
    assert refusal(tmp_path, "gpt", "--since", since).startswith(message)


def test_a_train_that_was_never_submitted_has_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gpt was never submitted: there is nothing to report"):
        Train(tmp_path).report(100)


def test_a_train_that_waits_for_its_first_attempt_is_all_queue(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    report = train.report(3600)
    assert (report.buckets[Bucket.QUEUE], report.wall_s, report.ettr, report.ettr_without_queue) == (
        3600,
        3600,
        0,
        None,
    )


def test_a_attempt_that_goes_on_ends_now(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    train.start(0, "7_1.0")
    train.steps(60, 1, 10)
    report = train.report(165)
    assert (report.wall_s, report.attempts[0].outcome) == (165, "")
    assert report.buckets[Bucket.UNKNOWN] == pytest.approx(5)  # amid a step
    assert report.notes == ()
    later = train.report(1000)
    assert later.buckets[Bucket.HANG] == pytest.approx(840)
    assert later.notes == ("7_1.0 has logged no step for 14m: opsctl status shows whether the attempt still runs",)


def test_a_attempt_that_nobody_finalized_ends_when_the_next_begins(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    train.start(0, "7_1.0")
    train.steps(60, 1, 10)
    train.start(400, "7_2.0")
    train.steps(460, 1, 20)
    report = train.report(660)
    assert (report.buckets[Bucket.HANG], report.buckets[Bucket.REPEATED]) == (pytest.approx(240), pytest.approx(100))


def test_a_log_that_was_rotated_is_read_with_what_lies_beside_it(tmp_path: Path) -> None:
    whole = rough(tmp_path / "whole").report(99999)
    train = rough(tmp_path / "cut")
    log = train.run.main_log
    lines = log.read_bytes().splitlines(keepends=True)
    log.with_name("main_log.txt.1").write_bytes(b"".join(lines[:150]))
    log.write_bytes(b"".join(lines[150:]))
    assert train.report(99999).buckets == pytest.approx(whole.buckets)


def test_what_logrotate_has_packed_is_read_too(tmp_path: Path) -> None:
    whole = rough(tmp_path / "whole").report(99999)
    train = rough(tmp_path / "cut")
    log = train.run.main_log
    lines = log.read_bytes().splitlines(keepends=True)
    log.with_name("main_log.txt.1.gz").write_bytes(gzip.compress(b"".join(lines[:150])))
    log.write_bytes(b"".join(lines[150:]))
    assert train.report(99999).buckets == pytest.approx(whole.buckets)


def test_what_a_log_does_not_hold_any_more_is_unknown_and_said_to_be(tmp_path: Path) -> None:
    train = rough(tmp_path)
    train.run.main_log.write_bytes(b"".join(train.run.main_log.read_bytes().splitlines(keepends=True)[150:]))
    report = train.report(99999)
    assert report.notes == (
        "the log of 2 attempts is missing, in whole or in part: the steps in that part are unknown",
    )
    assert report.buckets[Bucket.EFFECTIVE] == pytest.approx(510)  # nobody knows that step 100 had been done before
    assert report.buckets[Bucket.UNKNOWN] == pytest.approx(24 * 60 + 20 + 120 + 490)
    assert sum(report.buckets.values()) == pytest.approx(report.wall_s)


@pytest.mark.parametrize("content", [b"", bytes(range(256)) * 5000, b"iteration 5/ |" * 1000, None])
def test_a_log_that_is_none_leaves_the_journal_to_tell(tmp_path: Path, content: bytes | None) -> None:
    train = rough(tmp_path)
    train.run.main_log.unlink()
    if content is not None:
        train.run.main_log.write_bytes(content)
    report = train.report(99999)
    assert report.buckets[Bucket.QUEUE] == 660
    assert sum(report.buckets.values()) == pytest.approx(3320)
    assert any(note.startswith("no step in the log can be read") for note in report.notes)


def test_clocks_that_jump_in_the_journal_do_not_break_the_sum(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(5000)
    train.start(600, "7_1.0")  # by the clock of a node that is behind
    train.end(train.steps(700, 1, 20), Outcome.CRASHED)
    train.start(100, "7_2.0")
    train.end(train.steps(950, 21, 30), Outcome.FINISHED)
    report = train.report(6000)
    assert sum(report.buckets.values()) == pytest.approx(report.wall_s)
    assert report.buckets[Bucket.EFFECTIVE] > 0


def test_accounting_tells_when_a_attempt_ended_that_nobody_finalized_and_of_one_that_never_said_a_word(
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
    sacct = tmp_path / "sacct.txt"
    sacct.write_text("JobID|State|Start|End\n" + "".join(
        f"{job}|{state}|" + "|".join("Unknown" if at is None else f"{begin + at:.0f}" for at in (start, end)) + "\n"
        for job, state, start, end in rows
    ))  # fmt: skip
    given = json.loads(typed(tmp_path, "gpt", "--json", "--sacct", sacct))
    assert [(attempt["attempt"], attempt["outcome"]) for attempt in given["attempts"]] == [
        ("7_1.0", "NODE_FAIL"), ("7_2.0", "NODE_FAIL"), ("7_3.0", "finished"),
    ]  # fmt: skip
    spent = {name: seconds for name, seconds in given["buckets"].items() if seconds}
    assert spent == pytest.approx(
        {"training": 200, "start-up": 120 + 120, "hang until noticed": 40, "queue": 100 + 580}
    )


def test_of_all_that_a_user_ran_only_the_jobs_of_the_train_count(tmp_path: Path) -> None:
    rough(tmp_path)
    begin = BEGIN.timestamp()
    sacct = tmp_path / "sacct.txt"
    sacct.write_text(f"JobID|State|Start|End\n8_1|FAILED|{begin + 100:.0f}|{begin + 200:.0f}\n")
    with pytest.raises(InputError, match="none of the 1 jobs belongs to gpt, whose arrays are 7"):
        typed(tmp_path, "gpt", "--sacct", sacct)
    sacct.write_text(sacct.read_text() + f"7_9|FAILED|{begin + 100:.0f}|{begin + 200:.0f}\n")
    attempts = [
        attempt["attempt"] for attempt in json.loads(typed(tmp_path, "gpt", "--json", "--sacct", sacct))["attempts"]
    ]
    assert "7_9.0" in attempts and "8_1.0" not in attempts


def test_of_a_train_and_a_log_one_is_wanted(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["report"])
    assert done.exit_code == 2
    assert "Name a TRAIN, or a log with --log" in done.output
    assert CliRunner().invoke(cli, ["report", "gpt", "--log", "x"]).exit_code == 2
    assert CliRunner().invoke(cli, ["report", "gpt", "--json", "--markdown"]).exit_code == 2


def test_a_log_that_is_missing_or_no_file_says_so(tmp_path: Path) -> None:
    assert refusal(tmp_path, "--log", tmp_path / "none.txt") == f"{tmp_path}/none.txt: No such file or directory"
    assert refusal(tmp_path, "--log", tmp_path) == f"{tmp_path}: not a file"
    assert refusal(tmp_path, "--log", "/dev/zero") == "/dev/zero: not a file"


def test_a_train_whose_first_step_was_lately_begins_with_it(tmp_path: Path) -> None:
    assert rough(tmp_path).report(99999).begin == BEGIN


def test_training_time_of_unreadable_log_is_unknown(tmp_path: Path) -> None:
    train = rough(tmp_path)
    train.run.main_log.write_text("a trainer that logs nothing known\n" * 99)
    report = train.report(99999)
    assert (report.ettr, report.ettr_without_queue, report.step) == (None, None, None)
    assert report.buckets[Bucket.START_UP] == 0
    assert "was training is unknown" in render_headline(report)
    assert "0.0" not in render_headline(report)
