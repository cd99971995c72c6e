"""An attempt in the journal, in its own record and in accounting. `pytest tests/unit/report`"""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from opsctl.base.model import JobState
from opsctl.guard.end_record import Outcome
from opsctl.report.attempts import AttemptFacts, add_jobs, collect_attempts
from opsctl.report.formats import facts
from opsctl.slurm.past_jobs import JobRun
from opsctl.state.events import RestartDecided
from opsctl.telemetry.progress.effective_time import Bucket
from tests.support.made_reports import BEGIN, Train


def job(name: str, begin: float, end: float) -> JobRun:
    return JobRun(job=name, state=JobState.NODE_FAIL, submitted=None, begin=begin, end=end, nodes="node001")


def test_attempt_begins_at_the_time_of_its_record(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    train.start(10, "7_1.0")
    path = train.run.attempt("7_1.0").start
    record = json.loads(path.read_text()) | {"at": f"{BEGIN:%Y-%m-%dT%H:%M}:05+00:00"}
    path.write_text(json.dumps(record))
    (attempt,) = collect_attempts(train.run, train.journal.events())
    assert attempt.begin == BEGIN.timestamp() + 5


def test_unfinalized_attempt_ends_as_in_accounting() -> None:
    (attempt,) = add_jobs([AttemptFacts(attempt="7_1.0", nodes="", begin=1000.0)], [job("7_1", 1001, 1500)])
    assert (attempt.begin, attempt.end, attempt.outcome) == (1000, 1500, "NODE_FAIL")


def test_last_start_in_an_allocation_ends_with_its_job() -> None:
    starts = [AttemptFacts(attempt=f"7_1.{number}", nodes="", begin=1000.0 + 100 * number) for number in range(3)]
    starts[:2] = [replace(start, end=start.begin + 90, outcome=Outcome.CRASHED) for start in starts[:2]]
    *_, last = add_jobs(starts, [job("7_1", 1000, 1500)])
    assert (last.attempt, last.end) == ("7_1.2", 1500)


def test_report_counts_what_restarts_in_place_have_saved(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    for begin, name in ((0, "7_1.0"), (110, "7_1.1"), (310, "7_2.0")):
        train.start(begin, name)
        train.end(begin + 100, Outcome.CRASHED)
        if name == "7_1.0":
            train.note(105, RestartDecided(attempt=name, nodes="node001", spares="", why=""))
    report = train.report(410)
    assert (report.restarts, report.buckets[Bucket.RESTART], report.mean_queue_s) == (1, 10, 100)
    assert report.saved_s == 90
    assert dict(facts(report))["restarts in place"] == "1, 10s between two starts; saved 1m 30s: a task waits 1m 40s"
    assert report.spares_used == 0
    nodes = ("node[001-002]", "node[001,003]", "node004")
    attempts = tuple(replace(attempt, nodes=used) for attempt, used in zip(report.attempts, nodes, strict=True))
    text = dict(facts(replace(report, attempts=attempts)))["restarts in place"]
    assert text.startswith("1, 1 with a spare node, 10s between")


def test_report_counts_the_hours_of_idle_spare_nodes(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    train.start(0, "7_1.0", spares=2)
    train.end(1800, Outcome.CRASHED)
    train.start(1800, "7_1.1", spares=1)
    train.end(3600, Outcome.CRASHED)
    assert dict(facts(train.report(7200)))["idle spare nodes"] == "1.5 node-hours at most"


def test_later_job_with_same_id_is_another_attempt() -> None:
    (attempt,) = add_jobs([AttemptFacts(attempt="7_1.0", nodes="", begin=1000.0)], [job("7_1", 9000, 9500)])
    assert attempt.end is None


def test_finalized_attempt_ignores_accounting() -> None:
    known = AttemptFacts(attempt="7_1.0", nodes="", begin=1000.0, end=1400.0, outcome=Outcome.DEADLINE)
    assert add_jobs([known], [job("7_1", 1001, 1500)]) == [known]


def test_attempt_from_accounting_is_in_order_of_start() -> None:
    known = [
        AttemptFacts(attempt="7_1.0", nodes="", begin=1000.0, end=1400.0),
        AttemptFacts(attempt="7_3.0", nodes="", begin=3000.0),
    ]
    attempts = add_jobs(known, [job("7_2", 2000, 2100)])
    assert [attempt.attempt for attempt in attempts] == ["7_1.0", "7_2.0", "7_3.0"]
    assert attempts[1].why == "only Slurm's accounting has this attempt"


def train_with_a_short_attempt(place: Path) -> Train:
    """Return a train whose first attempt ends before its beginning: the clock was set back in between."""
    train = Train(place)
    train.submit(0)
    train.start(100, "7_1.0")
    train.end(40, Outcome.CRASHED, "exit code 1")
    train.start(200, "7_2.0")
    train.steps(210, 1, 20)
    return train


def test_attempt_of_zero_length_is_reported(tmp_path: Path) -> None:
    report = train_with_a_short_attempt(tmp_path).report(500)
    assert [attempt.attempt for attempt in report.attempts] == ["7_1.0", "7_2.0"]
    first = report.attempts[0]
    assert (first.began, first.ended) == (BEGIN + timedelta(seconds=100), BEGIN + timedelta(seconds=100))
    assert [cause.attempts for cause in report.causes if cause.cause == "crashed"] == [1]


def test_attempt_outside_of_the_period_is_left_out(tmp_path: Path) -> None:
    train = train_with_a_short_attempt(tmp_path)
    assert [attempt.attempt for attempt in train.report(500, since=150).attempts] == ["7_2.0"]
    assert [attempt.attempt for attempt in train.report(500, until=150).attempts] == ["7_1.0"]
    assert [attempt.attempt for attempt in train.report(500, until=90).attempts] == []
