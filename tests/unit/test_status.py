"""What `opsctl status` says, from rows of the queue and the files of a run directory."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from opsctl import switches
from opsctl.cli.status import duration, progress_line, status_block
from opsctl.journal import Journal, Kind
from opsctl.model import Job, JobState
from opsctl.rundir import RunDir
from opsctl.status import Progress, Status, status
from opsctl.switches import Switch, Verb
from opsctl.system import SystemClock
from trainer.contract import Heartbeat, Phase, to_json

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
LINE = "[n1:3]:  iteration {:8d}/     150 | elapsed time per iteration (s): 0.500 | lm loss: 2.5E+00 | TFLOPs: 149.2 |"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "gpt")
    run.create()
    run.config.write_text("")
    journal = Journal(run, SystemClock())
    journal.append(Kind.SUBMITTING, nonce="n1", tasks=5, after="")
    journal.append(Kind.SUBMITTED, nonce="n1", array="12")
    return run


def seen(run: RunDir, *jobs: Job) -> Status:
    return status(run, Journal(run, SystemClock()), jobs, NOW)


def row(state: JobState, *tasks: int, comment: str = "opsctl:gpt:n1", reason: str = "", **more: object) -> Job:
    return Job(
        id="12", array="12", tasks=tasks, name="gpt", user="me", state=state, comment=comment, reason=reason, **more
    )


def said(each: Status) -> str:
    console = Console(width=200)
    with console.capture() as caught:
        console.print(status_block(each, NOW))
    return caught.get()


def test_a_running_task_and_what_waits_behind_it(run: RunDir) -> None:
    found = seen(
        run,
        row(JobState.RUNNING, 1, nodes="node[001-002]", start=NOW - timedelta(minutes=5), end=NOW + timedelta(hours=2)),
        row(JobState.PENDING, 2, 3, 4, 5, reason="JobArrayTaskLimit"),
    )
    assert found.state == "running"
    assert "12_1 on node[001-002], 5m, 2h until its limit" in said(found)
    assert "4 tasks of 12: waits for the task before it to end" in said(found)


def test_all_held_is_held_and_one_that_runs_is_running(run: RunDir) -> None:
    held = row(JobState.PENDING, 2, reason="JobHeldUser")
    assert seen(run, held).state == "held"
    assert seen(run, held, row(JobState.RUNNING, 1)).state == "running"


def test_a_reason_that_will_never_end_is_noted(run: RunDir) -> None:
    found = seen(run, row(JobState.PENDING, 2, reason="DependencyNeverSatisfied"))
    assert "will never start: what it depends on did not end as asked" in said(found)
    assert found.notes == ("something queued will never start: see the reason above",)


def test_a_reason_of_slurms_that_we_do_not_know_is_shown_as_it_is(run: RunDir) -> None:
    assert seen(run, row(JobState.PENDING, 2, reason="AssocGrpGRES")).waiting[0].why == "AssocGrpGRES"


def test_a_job_with_our_id_and_not_our_comment_is_noticed(run: RunDir) -> None:
    found = seen(run, row(JobState.RUNNING, 1, comment="somebody else's"))
    assert found.state == "ended"
    assert found.notes == ("array 12 is not this train's any more: Slurm has used the id again for 'gpt' of me",)


def test_absent_from_the_queue_with_a_life_unsettled_is_unknown_not_ended(run: RunDir) -> None:
    Journal(run, SystemClock()).append(Kind.LIFE_STARTED, life="12_1.0", nodes="node001")
    assert seen(run).state == "unknown"


def test_the_last_life_that_finished_makes_the_train_finished(run: RunDir) -> None:
    journal = Journal(run, SystemClock())
    journal.append(Kind.LIFE_STARTED, life="12_1.0", nodes="node001")
    journal.append(Kind.LIFE_SETTLED, life="12_1.0", outcome="finished", action="cancel-queued", why="the last step")
    assert seen(run).state == "finished"
    assert "12_1.0 finished: the last step" in said(seen(run))


def test_progress_comes_from_any_megatron_style_log(run: RunDir) -> None:
    run.main_log.write_text("".join(LINE.format(step) + "\n" for step in (10, 20, 30)))
    progress = seen(run).progress
    assert progress is not None
    assert (progress.step, progress.last_step, progress.loss, progress.eta_s) == (30, 150, 2.5, 60.0)


def test_a_heartbeat_that_is_further_than_the_log_goes_first(run: RunDir) -> None:
    run.main_log.write_text(LINE.format(10) + "\n")
    beat = Heartbeat(life="12_1.0", node="n", rank=0, phase=Phase.SAVE, step=17, at=1.0, limit_s=60, checkpoint_step=10)
    (run.heartbeat / "train.json").write_text(to_json(beat))
    progress = seen(run, row(JobState.RUNNING, 1)).progress
    assert progress is not None
    assert (progress.step, progress.phase, progress.checkpoint_step) == (17, "save", 10)


def test_switches_and_requests_are_shown_with_who_made_them(run: RunDir) -> None:
    switches.arm(run, Switch.KILL, why="wrong data")
    switches.request(run, Verb.RELEASE)
    text = said(seen(run))
    assert "kill switch" in text
    assert "wrong data" in text
    assert "`opsctl watch` carries it out" in text


def test_only_a_running_train_has_time_left() -> None:
    progress = Progress(step=5, last_step=10, loss=2.0, step_s=1.0, tflops=None, phase="exit", at=None,
                        checkpoint_step=None, eta_s=5.0)  # fmt: skip
    assert progress_line(progress, is_running=False) == "step 5 of 10 · loss 2 · 1 s a step"
    assert progress_line(progress, is_running=True) == "step 5 of 10 · loss 2 · 1 s a step · in exit · 5s left"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h"), (90061, "1d 1h"), (-5, "5s")]
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
