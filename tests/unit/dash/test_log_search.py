"""The log in parts: its end, a search, and the first error of the newest attempt that has one."""

from __future__ import annotations

import json
from pathlib import Path

from opsctl.dash.log_search import MAX_LINES, find_first_error, read_log_tail, search_log
from opsctl.guard.end_record import Outcome
from tests.support.made_reports import Train

ERROR = "[node001:3]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


def make_train(place: Path) -> Train:
    """Return a train whose first attempt fails at step 10, and whose second one runs."""
    train = Train(place)
    train.submit(0)
    train.start(10, "7_1.0")
    train.steps(20, 1, 10)
    train.write_log(ERROR)
    train.write_log("Traceback (most recent call last):")
    train.end(200, Outcome.CRASHED)
    train.start(300, "7_2.0")
    train.steps(310, 11, 20)
    return train


def test_tail_ends_with_the_last_line(tmp_path: Path) -> None:
    excerpt = read_log_tail(make_train(tmp_path).run)
    assert excerpt.lines[-1].speaker == "node001:3"
    assert "iteration       20/" in excerpt.lines[-1].text


def test_tail_is_bounded(tmp_path: Path) -> None:
    train = make_train(tmp_path)
    train.write_log("\n".join(["word " * 100] * 2000))
    assert len(read_log_tail(train.run).lines) == MAX_LINES


def test_search_ignores_case_and_keeps_offsets(tmp_path: Path) -> None:
    train = make_train(tmp_path)
    excerpt = search_log(train.run, "cuda ERROR")
    assert [line.text for line in excerpt.lines] == [ERROR.partition(": ")[2]]
    assert train.run.main_log.read_bytes()[excerpt.lines[0].offset :].startswith(ERROR.encode())


def test_search_without_a_hit_says_so(tmp_path: Path) -> None:
    assert search_log(make_train(tmp_path).run, "nothing of the kind").title.startswith("0 lines with")


def test_first_error_is_that_of_the_failed_attempt(tmp_path: Path) -> None:
    train = make_train(tmp_path)
    excerpt = find_first_error(train.run, train.journal)
    assert excerpt.title == "about the first error of attempt 7_1.0"
    assert [line.text for line in excerpt.lines if line.is_hit] == [ERROR.partition(": ")[2]]
    assert "iteration       11/" not in json.dumps([line.text for line in excerpt.lines])


def test_train_without_a_log_has_no_lines(tmp_path: Path) -> None:
    train = Train(tmp_path)
    assert read_log_tail(train.run).title == "no log yet"
    assert find_first_error(train.run, train.journal).lines == ()
