"""Shares of a train's time by cause. `pytest tests/unit/report`"""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.guard.end_record import Outcome
from opsctl.report.contents import Report
from opsctl.state.events import Cancelled, Held, HoldReleased
from opsctl.state.reasons import Reason, ReasonKind, as_written
from opsctl.telemetry.progress.effective_time import Bucket
from tests.support.made_reports import BEGIN, Train, make_rough_train


def spent(report: Report) -> dict[str, float]:
    return {bucket.value: round(seconds, 3) for bucket, seconds in report.buckets.items() if seconds > 1e-6}


ROUGH = {
    "queue": 660,
    "start-up": 240,
    "training": 1500,
    "done twice": 500,
    "checkpoints": 70,
    "hang until noticed": 300,
    "slow steps": 50,
}


@pytest.mark.parametrize("stamps", [True, False])
def test_every_second_of_a_rough_train_has_a_cause(tmp_path: Path, stamps: bool) -> None:
    train = make_rough_train(tmp_path, stamps=stamps)
    if not stamps:  # the last output of the ranks counts instead
        log = train.run.attempt_logs("7_1.0") / "node001-3.log"
        log.parent.mkdir(parents=True)
        log.touch()
        os.utime(log, (BEGIN.timestamp() + 1760,) * 2)
    report = train.report(99999)
    assert spent(report) == ROUGH
    assert report.wall_s == pytest.approx(sum(ROUGH.values()))


def test_ratio_with_and_without_the_queue(tmp_path: Path) -> None:
    report = make_rough_train(tmp_path).report(99999)
    assert report.ettr == pytest.approx(1500 / 3320)
    assert report.ettr_without_queue == pytest.approx(1500 / 2660)


def test_attempts_have_steps_end_and_losses(tmp_path: Path) -> None:
    first, second = make_rough_train(tmp_path).report(99999).attempts
    assert (first.attempt, first.outcome, first.first_step, first.last_step) == ("7_1.0", "node-failed", 1, 100)
    assert (second.attempt, second.outcome, second.first_step, second.last_step) == ("7_2.0", "finished", 51, 150)
    assert first.buckets[Bucket.HANG] == pytest.approx(300)
    assert second.buckets[Bucket.REPEATED] == pytest.approx(500)
    assert sum(second.buckets.values()) == pytest.approx((second.ended - second.began).total_seconds())


def test_figures_of_the_run_are_medians_and_the_newest(tmp_path: Path) -> None:
    report = make_rough_train(tmp_path).report(99999)
    assert (report.step, report.last_step, report.tokens, report.samples) == (150, 150, 150 * 2048, 150 * 16)
    assert (report.step_s, report.tflops) == (10.0, 140.0)
    assert report.loss[-1].step == 150


def test_since_cuts_the_window_but_not_the_history(tmp_path: Path) -> None:
    report = make_rough_train(tmp_path).report(99999, since=2120)  # the second attempt's start
    assert spent(report) == {"start-up": 120, "training": 500, "done twice": 500, "slow steps": 50, "checkpoints": 30}
    assert [attempt.attempt for attempt in report.attempts] == ["7_2.0"]


def test_held_queued_and_nothing_queued_differ(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0, tasks=2)
    train.start(0, "7_1.0")
    train.end(train.steps(0, 1, 10), Outcome.DEADLINE)
    train.note(130, Held(jobs=("7",), reason=as_written("look")))
    train.note(200, HoldReleased(jobs=("7",)))
    train.start(250, "7_2.0")
    train.end(train.steps(250, 11, 20), Outcome.DEADLINE)
    train.submit(1000, tasks=1, array="8")
    assert spent(train.report(1100)) == {"training": 200, "queue": 30 + 50 + 100, "held": 70, "nothing queued": 650}


def test_dropped_duplicate_of_a_submission_ends_no_train(tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0, tasks=2)
    train.start(0, "7_1.0")
    train.end(train.steps(0, 1, 10), Outcome.DEADLINE)
    train.note(130, Cancelled(jobs=("8",), reason=Reason(kind=ReasonKind.DUPLICATE)))
    assert train.report(1100).end == BEGIN + timedelta(seconds=1100)
