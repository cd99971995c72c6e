"""Checkpoints that do not come, that grow, that are damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.model import Level
from opsctl.trainer.manifest import FileRecord, Manifest, directory_name, write_manifest
from tests.support.watch_context import T0, Stage

Hours = Callable[[float], timedelta]


@pytest.fixture
def hours() -> Hours:
    return lambda count: timedelta(hours=count)


def save(stage: Stage, number: int, *, size: int = 1000) -> Path:
    """A foreign trainer's checkpoint, written now."""
    place = stage.run.checkpoints / f"global_step{number}"
    place.mkdir()
    (place / "model.pt").write_bytes(bytes(size))
    now = stage.clock.time.timestamp()
    for path in (place / "model.pt", place):
        os.utime(path, (now, now))
    return place


def save_ours(stage: Stage, step: int, *, size: int = 1000) -> Path:
    """A complete checkpoint of the embedded trainer."""
    place = stage.run.checkpoints / directory_name(step)
    place.mkdir()
    (place / "rank-0.pt").write_bytes(bytes(size))
    files = {"rank-0.pt": FileRecord(size=size, sha256="0" * 64)}
    write_manifest(
        place, Manifest(step=step, consumed_samples=step, topology={}, model={}, precision="bf16", files=files)
    )
    now = stage.clock.time.timestamp()
    for path in (*place.iterdir(), place):
        os.utime(path, (now, now))
    return place


def test_a_rhythm_of_three_hours_makes_nine_and_a_half_too_long(stage: Stage, hours: Hours) -> None:
    stage.start_job()
    for number in range(4):
        save(stage, number)
        assert stage.judge("checkpoint").level is Level.OK
        stage.clock.time += hours(3)
    assert stage.judge("checkpoint", after=hours(6)).level is Level.OK
    finding = stage.judge("checkpoint", after=hours(1))
    assert (finding.level, finding.summary) == (
        Level.WARNING,
        "gpt: no new checkpoint for 10.0 h of running (limit 9.5 h); newest: global_step3",
    )
    assert finding.remedy == "opsctl save-switch gpt"
    assert stage.judge("checkpoint", after=hours(10)).level is Level.CRITICAL


def test_one_that_is_dated_ahead_of_our_clock_is_not_minus_some_hours_old(stage: Stage) -> None:
    stage.start_job()
    place = stage.run.checkpoints / "step1"
    place.mkdir()
    os.utime(place, (T0.timestamp() + 90, T0.timestamp() + 90))
    assert "no new checkpoint for 0.0 h of running" in stage.judge("checkpoint").summary


def test_time_in_the_queue_does_not_count(stage: Stage, hours: Hours) -> None:
    stage.start_job()
    for number in range(3):
        save(stage, number)
        stage.judge("checkpoint")
        stage.clock.time += hours(1)
    stage.jobs = ()
    assert stage.judge("checkpoint", after=hours(100)).level is Level.OK
    stage.start_job(since=stage.clock.time)
    assert stage.judge("checkpoint", after=hours(2)).level is Level.OK
    assert stage.judge("checkpoint", after=hours(2)).level is Level.WARNING


def test_a_limit_may_be_said(stage: Stage, hours: Hours) -> None:
    stage.config = {"checkpoint_hours": 1}
    stage.start_job()
    assert stage.judge("checkpoint", after=hours(0.9)).level is Level.OK
    finding = stage.judge("checkpoint", after=hours(0.2))
    assert (finding.level, finding.summary.endswith("newest: none")) == (Level.WARNING, True)


def test_the_embedded_trainer_says_how_often_it_saves(stage: Stage, hours: Hours) -> None:
    stage.run.trainer_config.write_text(json.dumps({"checkpoint": {"every": 600, "keep_last": 3}}))
    stage.start_job()
    stage.steps(1, 30, step_s=6)  # 600 steps of 6 s are an hour
    assert stage.judge("checkpoint", after=hours(3.4)).level is Level.OK
    assert stage.judge("checkpoint", after=hours(0.2)).level is Level.WARNING


def test_checkpoints_ten_times_their_size_are_told(stage: Stage, hours: Hours) -> None:
    for number in range(3):
        save(stage, number)
        stage.judge("checkpoint", after=hours(1))
    save(stage, 3, size=10_000)
    finding = {each.key: each for each in stage.judge_all("checkpoint", after=hours(1))}["checkpoint/gpt/size"]
    assert (
        finding.summary == "gpt: global_step3 is 900 % larger than the previous checkpoints (9.77 KiB, before 1000 B)"
    )
    assert finding.level is Level.WARNING


def test_one_that_is_still_being_written_is_not_measured(stage: Stage, hours: Hours) -> None:
    for number in range(3):
        save(stage, number)
        stage.judge("checkpoint", after=hours(1))
    save(stage, 3, size=10_000)
    assert len(stage.judge_all("checkpoint")) == 1


@pytest.mark.parametrize("what", ["cut", "gone", "manifest"])
def test_one_that_is_damaged_is_told_when_it_is_new(stage: Stage, what: str) -> None:
    stage.run.trainer_config.write_text("{}")
    place = save_ours(stage, 100)
    if what == "cut":
        (place / "rank-0.pt").write_bytes(b"short")
    elif what == "gone":
        (place / "rank-0.pt").unlink()
    else:
        (place / "manifest.json").write_text("{}")
    finding = {each.key: each for each in stage.judge_all("checkpoint")}["checkpoint/gpt/verify"]
    said = {
        "cut": "gpt: step-0000100: rank-0.pt has 5 bytes instead of 1000",
        "gone": "gpt: step-0000100: rank-0.pt is missing",
        "manifest": "gpt: step-0000100: manifest.json is not the one that COMPLETE was written for",
    }
    assert (finding.level, finding.summary) == (Level.CRITICAL, said[what])


def test_what_the_trainer_has_set_aside_is_told_and_a_good_one_is_not(stage: Stage) -> None:
    stage.run.trainer_config.write_text("{}")
    save_ours(stage, 200)
    assert len(stage.judge_all("checkpoint")) == 1
    (stage.run.checkpoints / "damaged-step-0000100").mkdir()
    finding = stage.judge_all("checkpoint")[1]
    assert (finding.level, finding.summary) == (Level.WARNING, "gpt: damaged-step-0000100: renamed as damaged")


def test_a_train_that_has_saved_nothing_yet_and_does_not_run_is_fine(stage: Stage) -> None:
    finding = stage.judge("checkpoint")
    assert (finding.level, finding.summary) == (Level.OK, "gpt: newest checkpoint: none")
