"""The slow parts of a train's page: attempts by cause, events on the curves, and the log in parts."""

import json
import time
from pathlib import Path

import pytest

from opsctl.app import build
from opsctl.dash.log_search import MAX_LINES, find_first_error, read_log_tail, search_log
from opsctl.dash.train_detail import read_detail
from opsctl.guard.end_record import Outcome
from opsctl.state.events import ExclusionDecided
from opsctl.state.reasons import as_written
from tests.support.made_reports import Train


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """A train whose first attempt crashes at step 100 and whose second one goes on from step 51."""
    train = Train(tmp_path / "trains")
    train.submit(0)
    train.start(10, "7_1.0")
    train.steps(20, 1, 100)
    train.end(1100, Outcome.CRASHED, "exit code 1")
    train.note(
        1110,
        ExclusionDecided(
            attempt="7_1.0",
            nodes="node001",
            until="2026-04-01T00:00:00+00:00",
            excluded=True,
            reason=as_written("GPU fell off"),
            done=(),
        ),
    )
    train.start(1200, "7_2.0")
    train.steps(1210, 51, 80)
    return train


def detail_of(train: Train, tmp_path: Path, time_zone: str = ""):
    site = tmp_path / "site.toml"
    site.write_text(f'root = "{train.run.path.parent}"\ntrust_parents = true\n[alerts]\ntime_zone = "{time_zone}"\n')
    app = build(site)
    train.clock.seconds = 1600
    object.__setattr__(app, "clock", train.clock)
    return read_detail(app, train.run)


def test_attempts_are_coloured_by_cause(train: Train, tmp_path: Path) -> None:
    detail = detail_of(train, tmp_path)
    assert [(row.name, row.group) for row in detail.attempts] == [("7_1.0", "software"), ("7_2.0", "running")]
    assert set(detail.groups) == {"software", "running"}


def test_curves_hold_restarts_and_excluded_nodes(train: Train, tmp_path: Path) -> None:
    curves = detail_of(train, tmp_path).curves
    marks = [(mark[0], mark[1]) for mark in json.loads(json.dumps(curves))["marks"]]
    assert (51, "restart") in marks
    assert [kind for _, kind in marks].count("restart") == 1
    assert "node excluded" in [kind for _, kind in marks]


def test_curves_are_in_the_order_of_steps(train: Train, tmp_path: Path) -> None:
    curves = json.loads(json.dumps(detail_of(train, tmp_path).curves))
    for name in ("loss", "pace"):
        steps = curves[name]["bins"][0]
        assert steps == sorted(set(steps))
        assert len(steps) > 10


def test_times_of_attempts_have_a_zone(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        detail = detail_of(train, tmp_path)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert detail.ticks[0].label == "12:00"
    assert {mark[3].partition(":")[0] for mark in detail.curves["marks"]} == {"2026-03-01 12"}
    assert [row.began for row in detail.attempts] == [
        "2026-03-01 12:00:10 UTC",
        "2026-03-01 12:20:00 UTC",
    ]


def test_times_are_those_of_the_site(train: Train, tmp_path: Path) -> None:
    detail = detail_of(train, tmp_path, time_zone="Asia/Tokyo")
    assert detail.attempts[0].began == "2026-03-01 21:00:10 JST"
    assert detail.ticks[0].label == "21:00"


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
    assert excerpt.lines[-1].origin == "node001:3"
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
