"""What the journal, a life's own record and accounting say of the same life. `pytest tests/unit/report`"""

from __future__ import annotations

import json
from pathlib import Path

from opsctl.guard.outcome import Outcome
from opsctl.model import JobState
from opsctl.report.attempts import LifeFacts, collect_lives, with_jobs
from opsctl.report.sacct import JobRun
from tests.support.made_reports import BEGIN, Train


def job(name: str, begin: float, end: float) -> JobRun:
    return JobRun(job=name, state=JobState.NODE_FAIL, submitted=None, begin=begin, end=end, nodes="node001")


def test_a_life_began_when_its_own_record_says_though_the_journal_was_late(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    train.start(10, "7_1.0")
    path = train.run.life("7_1.0").start
    record = json.loads(path.read_text()) | {"at": f"{BEGIN:%Y-%m-%dT%H:%M}:05+00:00"}
    path.write_text(json.dumps(record))
    (life,) = collect_lives(train.run, train.journal.events())
    assert life.begin == BEGIN.timestamp() + 5


def test_a_life_that_nobody_settled_ended_when_accounting_says() -> None:
    (life,) = with_jobs([LifeFacts(life="7_1.0", nodes="", begin=1000.0)], [job("7_1", 1001, 1500)])
    assert (life.begin, life.end, life.outcome) == (1000, 1500, "NODE_FAIL")


def test_a_job_of_the_same_id_hours_later_is_another_one() -> None:
    (life,) = with_jobs([LifeFacts(life="7_1.0", nodes="", begin=1000.0)], [job("7_1", 9000, 9500)])
    assert life.end is None


def test_what_the_journal_settled_accounting_does_not_change() -> None:
    known = LifeFacts(life="7_1.0", nodes="", begin=1000.0, end=1400.0, outcome=Outcome.DEADLINE)
    assert with_jobs([known], [job("7_1", 1001, 1500)]) == [known]


def test_a_life_that_only_accounting_knows_stands_where_it_began() -> None:
    known = [
        LifeFacts(life="7_1.0", nodes="", begin=1000.0, end=1400.0),
        LifeFacts(life="7_3.0", nodes="", begin=3000.0),
    ]
    found = with_jobs(known, [job("7_2", 2000, 2100)])
    assert [life.life for life in found] == ["7_1.0", "7_2.0", "7_3.0"]
    assert found[1].why == "only Slurm knows of it"
