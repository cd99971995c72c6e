"""Checkpoints that are late, that grow or that are damaged."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.base.findings import Severity
from opsctl.state import switches
from opsctl.state.events import AttemptFinalized, AttemptStarted, RolledBack
from opsctl.state.switches import Switch
from opsctl.trainer.manifest import FileRecord, Manifest, directory_name, write_manifest
from tests.support.watch_context import T0, Bench, waiting

Hours = Callable[[float], timedelta]


@pytest.fixture
def hours() -> Hours:
    return lambda count: timedelta(hours=count)


def save(bench: Bench, number: int, *, size: int = 1000) -> Path:
    """Write a checkpoint of a foreign trainer, dated now."""
    checkpoint = bench.run.checkpoints / f"global_step{number}"
    checkpoint.mkdir()
    (checkpoint / "model.pt").write_bytes(bytes(size))
    now = bench.clock.time.timestamp()
    for path in (checkpoint / "model.pt", checkpoint):
        os.utime(path, (now, now))
    return checkpoint


def save_embedded(bench: Bench, step: int, *, size: int = 1000) -> Path:
    """Write a complete checkpoint of the embedded trainer."""
    checkpoint = bench.run.checkpoints / directory_name(step)
    checkpoint.mkdir()
    (checkpoint / "rank-0.pt").write_bytes(bytes(size))
    files = {"rank-0.pt": FileRecord(size=size, sha256="0" * 64)}
    write_manifest(
        checkpoint, Manifest(step=step, consumed_samples=step, topology={}, model={}, precision="bf16", files=files)
    )
    now = bench.clock.time.timestamp()
    for path in (*checkpoint.iterdir(), checkpoint):
        os.utime(path, (now, now))
    return checkpoint


def test_limit_follows_the_usual_interval(bench: Bench, hours: Hours) -> None:
    bench.start_task()
    for number in range(4):
        save(bench, number)
        assert bench.judge("checkpoint").severity is Severity.OK
        bench.clock.time += hours(3)
    assert bench.judge("checkpoint", after=hours(6)).severity is Severity.OK
    finding = bench.judge("checkpoint", after=hours(1))
    assert finding.severity is Severity.WARNING
    assert finding.summary == "gpt: no new checkpoint for 10.0 h of running (limit 9.5 h); newest: global_step3"
    assert finding.remedy == "Ask for a checkpoint now: opsctl save-switch gpt"
    assert bench.judge("checkpoint", after=hours(10)).severity is Severity.CRITICAL


def test_checkpoint_dated_in_the_future_has_age_zero(bench: Bench) -> None:
    bench.start_task()
    checkpoint = bench.run.checkpoints / "step1"
    checkpoint.mkdir()
    os.utime(checkpoint, (T0.timestamp() + 90, T0.timestamp() + 90))
    assert "no new checkpoint for 0.0 h of running" in bench.judge("checkpoint").summary


def test_queue_time_does_not_count(bench: Bench, hours: Hours) -> None:
    bench.start_task()
    for number in range(3):
        save(bench, number)
        bench.judge("checkpoint")
        bench.clock.time += hours(1)
    bench.jobs = ()
    assert bench.judge("checkpoint", after=hours(100)).severity is Severity.OK
    bench.start_task(since=bench.clock.time, tasks=(6,))
    assert bench.judge("checkpoint", after=hours(2)).severity is Severity.OK
    assert bench.judge("checkpoint", after=hours(2)).severity is Severity.WARNING


def test_rollback_to_an_old_checkpoint_makes_no_checkpoint_late(bench: Bench, hours: Hours) -> None:
    bench.journal.append(AttemptStarted(attempt="7_1.0", nodes="n1"))
    bench.start_task(since=bench.clock.time)
    for number in range(12):
        newest = save(bench, number)
        bench.judge("checkpoint", after=hours(1))
    for number in range(3, 12):
        (bench.run.checkpoints / f"global_step{number}").rename(bench.run.path / f"aside{number}")
    bench.journal.append(
        AttemptFinalized(attempt="7_1.0", outcome="paused", action="hold-queued", why="opsctl rollback")
    )
    bench.journal.append(RolledBack(rollback=1, step=2, checkpoint=newest.name, aside=()))
    bench.journal.append(AttemptStarted(attempt="7_2.0", nodes="n1"))
    bench.start_task(since=bench.clock.time, tasks=(2,))
    assert bench.judge("checkpoint", after=hours(0.5)).severity is Severity.OK
    assert bench.judge("checkpoint", after=hours(4)).severity is Severity.WARNING


def test_checkpoint_of_a_clock_hours_ahead_hides_no_missing_one(bench: Bench, hours: Hours) -> None:
    bench.config = {"checkpoint_hours": 1}
    bench.start_task()
    checkpoint = save(bench, 1)
    ahead = (bench.clock.time + hours(12)).timestamp()
    for path in (*checkpoint.iterdir(), checkpoint):
        os.utime(path, (ahead, ahead))
    assert bench.judge("checkpoint").severity is Severity.OK
    assert bench.judge("checkpoint", after=hours(0.9)).severity is Severity.OK
    assert bench.judge("checkpoint", after=hours(0.2)).severity is Severity.WARNING


def test_limit_may_be_configured(bench: Bench, hours: Hours) -> None:
    bench.config = {"checkpoint_hours": 1}
    bench.start_task()
    assert bench.judge("checkpoint", after=hours(0.9)).severity is Severity.OK
    finding = bench.judge("checkpoint", after=hours(0.2))
    assert (finding.severity, finding.summary.endswith("newest: none")) == (Severity.WARNING, True)


def test_limit_follows_the_settings_of_the_trainer(bench: Bench, hours: Hours) -> None:
    bench.run.trainer_config.write_text(json.dumps({"checkpoint": {"every": 600, "keep_last": 3}}))
    bench.start_task()
    bench.steps(1, 30, step_s=6)  # 600 steps of 6 s take an hour
    assert bench.judge("checkpoint", after=hours(3.4)).severity is Severity.OK
    assert bench.judge("checkpoint", after=hours(0.2)).severity is Severity.WARNING


def test_checkpoint_ten_times_larger_is_reported(bench: Bench, hours: Hours) -> None:
    for number in range(3):
        save(bench, number)
        bench.judge("checkpoint", after=hours(1))
    save(bench, 3, size=10_000)
    finding = {finding.key: finding for finding in bench.judge_all("checkpoint", after=hours(1))}["checkpoint/gpt/size"]
    grown = "gpt: global_step3 is 900 % larger than the previous checkpoints (9.77 KiB, before 1000 B)"
    assert (finding.severity, finding.summary) == (Severity.WARNING, grown)


def test_unfinished_checkpoint_is_not_measured(bench: Bench, hours: Hours) -> None:
    for number in range(3):
        save(bench, number)
        bench.judge("checkpoint", after=hours(1))
    save(bench, 3, size=10_000)
    assert len(bench.judge_all("checkpoint")) == 1


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest"])
def test_new_damaged_checkpoint_is_reported(bench: Bench, damage: str) -> None:
    bench.run.trainer_config.write_text("{}")
    checkpoint = save_embedded(bench, 100)
    if damage == "cut":
        (checkpoint / "rank-0.pt").write_bytes(b"short")
    elif damage == "gone":
        (checkpoint / "rank-0.pt").unlink()
    else:
        (checkpoint / "manifest.json").write_text("{}")
    finding = {finding.key: finding for finding in bench.judge_all("checkpoint")}["checkpoint/gpt/verify"]
    summaries = {
        "cut": "gpt: step-0000100: rank-0.pt has 5 bytes instead of 1000",
        "gone": "gpt: step-0000100: rank-0.pt is missing",
        "manifest": "gpt: step-0000100: manifest.json is not the one that COMPLETE was written for",
    }
    assert (finding.severity, finding.summary) == (Severity.CRITICAL, summaries[damage])


def test_renamed_damaged_checkpoint_is_reported(bench: Bench) -> None:
    bench.run.trainer_config.write_text("{}")
    save_embedded(bench, 200)
    assert len(bench.judge_all("checkpoint")) == 1
    (bench.run.checkpoints / "damaged-step-0000100").mkdir()
    finding = bench.judge_all("checkpoint")[1]
    assert (finding.severity, finding.summary) == (Severity.WARNING, "gpt: damaged-step-0000100: renamed as damaged")


def test_idle_train_without_checkpoints_is_ok(bench: Bench) -> None:
    finding = bench.judge("checkpoint")
    assert (finding.severity, finding.summary) == (Severity.OK, "gpt: newest checkpoint: none")


def run_attempt(bench: Bench, task: int, *, minutes: float, resume_step: int = 100, **end: object) -> None:
    """Run one task to its end, as the guard records the task."""
    name = f"7_{task}.0"
    started = bench.clock.time
    bench.journal.append(AttemptStarted(attempt=name, nodes="n1"))
    bench.clock.time += timedelta(minutes=minutes)
    bench.journal.append(AttemptFinalized(attempt=name, outcome="timed-out", action="continue", why="the time limit"))
    record = {
        "attempt": name,
        "outcome": "timed-out",
        "action": "continue",
        "why": "the time limit",
        "started": started.isoformat(),
        "ended": bench.clock.time.isoformat(),
        "new_checkpoint": False,
        "resume_step": resume_step,
        "highest_step": resume_step + 50,
    }
    path = bench.run.attempt(name).end
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**record, **end}))
    bench.clock.time += timedelta(hours=5)


def test_running_time_of_short_tasks_adds_up(bench: Bench) -> None:
    bench.config = {"checkpoint_hours": 2}
    bench.jobs = (waiting("Dependency"),)
    severities = []
    for task in range(1, 6):
        run_attempt(bench, task, minutes=50, resume_step=100 * task)
        severities.append(bench.judge("checkpoint").severity)
    assert severities == [Severity.OK, Severity.OK, Severity.WARNING, Severity.WARNING, Severity.CRITICAL]
    bench.start_task(since=bench.clock.time, tasks=(6,))
    finding = bench.judge("checkpoint", after=timedelta(minutes=6))
    assert finding.summary == "gpt: no new checkpoint for 4.3 h of running (limit 2.0 h); newest: none"
    save(bench, 1)
    assert bench.judge("checkpoint", after=timedelta(minutes=6)).severity is Severity.OK


def test_attempts_from_the_same_step_are_critical(bench: Bench) -> None:
    bench.jobs = (waiting("Dependency"),)
    for task in (1, 2):
        run_attempt(bench, task, minutes=50)
        assert [finding.key for finding in bench.judge_all("checkpoint")] == ["checkpoint/gpt"]
    run_attempt(bench, 3, minutes=50)
    finding = bench.judge_all("checkpoint")[1]
    assert (finding.key, finding.severity) == ("checkpoint/gpt/step", Severity.CRITICAL)
    assert finding.summary == "gpt: the last 3 attempts all continued from step 100 and saved nothing"
    assert finding.lines[0] == "7_1.0: reached step 150"


@pytest.mark.parametrize("end", [{"resume_step": 150}, {"new_checkpoint": True}, {"outcome": "cancelled"}])
def test_attempts_that_advance_are_ok(bench: Bench, end: dict[str, object]) -> None:
    bench.jobs = (waiting("Dependency"),)
    for task in (1, 2):
        run_attempt(bench, task, minutes=50)
    run_attempt(bench, 3, minutes=50, **end)  # type: ignore[arg-type]  # one of the fields is an argument
    assert [finding.key for finding in bench.judge_all("checkpoint")] == ["checkpoint/gpt"]


def test_checkpoints_that_seem_incomplete_are_named(bench: Bench, hours: Hours) -> None:
    bench.start_task()
    (bench.run.checkpoints / "iter_0000043").mkdir()
    (bench.run.checkpoints / "iter_0000043" / "weights.bin").write_text("1")
    (bench.run.checkpoints / "latest_checkpointed_iteration.txt").write_text("43")
    summary = bench.judge("checkpoint", after=hours(13)).summary
    assert "newest: 1 found, none recognised as complete: iter_0000043: mp_rank_*/model_*rng.pt is missing" in summary


def find_unanswered(bench: Bench, minutes: float) -> list[str]:
    """Return what the watchdog says about the save switch, `minutes` later."""
    findings = bench.judge_all("checkpoint", after=timedelta(minutes=minutes))
    return [finding.summary for finding in findings if finding.key == "checkpoint/gpt/switch"]


def test_save_switch_that_the_trainer_does_not_read_is_reported(bench: Bench) -> None:
    bench.run.body.write_text("srun python train.py  # does not read TRAIN_SAVE_SWITCH\n")
    switches.arm(bench.run, Switch.SAVE, why="")
    os.utime(bench.run.switches / "save", (T0.timestamp(), T0.timestamp()))
    assert find_unanswered(bench, 60) == []  # no task runs
    bench.start_task(since=bench.clock.time)
    assert find_unanswered(bench, 4) == []
    assert find_unanswered(bench, 2) == [
        "gpt: the save switch has not been answered for 6m: neither the command nor its scripts name"
        " TRAIN_SAVE_SWITCH, so the trainer probably does not read it"
    ]
    switches.disarm(bench.run, Switch.SAVE)
    assert find_unanswered(bench, 60) == []


def test_trainer_that_reads_the_save_switch_has_time_to_save(bench: Bench) -> None:
    bench.run.body.write_text('srun python train.py --save-when "$TRAIN_SAVE_SWITCH"\n')
    bench.start_task()
    switches.arm(bench.run, Switch.SAVE, why="")
    os.utime(bench.run.switches / "save", (T0.timestamp(), T0.timestamp()))
    assert find_unanswered(bench, 29) == []
    assert find_unanswered(bench, 2) == [
        "gpt: the save switch has not been answered for 31m: the trainer reads it, and has not saved since"
    ]
