"""`opsctl status`, from rows of the queue and the files of a run directory."""

import json
import math
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from opsctl.alerts.ledger import AlertLedger
from opsctl.alerts.ledger_files import LedgerFiles, open_alerts
from opsctl.base.findings import to_data
from opsctl.base.model import Job, JobState
from opsctl.base.units import format_duration
from opsctl.cli.status import status_block
from opsctl.guard.attempt_record import Start, write_start
from opsctl.host.system import SystemClock
from opsctl.monitor.status import TrainStatus, read_status
from opsctl.settings.alerts import AlertSettings
from opsctl.state import switches
from opsctl.state.events import AttemptFinalized, AttemptStarted, SubmitRefused, Submitted, Submitting
from opsctl.state.journal import Journal, actor
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.state.switches import RequestKind, Switch
from opsctl.trainer.contract import Heartbeat, Phase, to_json
from tests.support.cases import read_cases, read_table
from tests.support.findings import make_finding
from tests.support.made_events import make_diagnosed

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
LINE = "[n1:3]:  iteration {:8d}/     150 | elapsed time per iteration (s): 0.500 | lm loss: 2.5E+00 | TFLOPs: 149.2 |"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "gpt")
    run.create()
    run.config.write_text("")
    journal = Journal(run, SystemClock())
    journal.append(Submitting(nonce="n1", tasks=5, after=""))
    journal.append(Submitted(nonce="n1", array="12"))
    return run


def read(run: RunDir, *jobs: Job) -> TrainStatus:
    return read_status(run, Journal(run, SystemClock()), jobs, NOW)


def row(state: JobState, *tasks: int, comment: str = "opsctl:gpt:n1", reason: str = "", **more: object) -> Job:
    return Job(
        id="12", array="12", tasks=tasks, name="gpt", user=actor(), state=state, comment=comment, reason=reason, **more
    )


def write_heartbeat(run: RunDir, **changes: object) -> None:
    fields = {"attempt": "12_1.0", "node": "n", "rank": 0, "at": 1.0, "limit_s": 60.0, "last_steps": 150, **changes}
    (run.heartbeat / "train.json").write_text(to_json(Heartbeat(**fields)))  # type: ignore[arg-type]  # mixed values


def start_attempt(run: RunDir, *, main_log: int) -> None:
    start = Start(
        attempt="12_1.0", job="12", nodes="n", node_count=1, gpus="", node="n", at=NOW, checkpoint=0, main_log=main_log
    )
    write_start(run, run.attempt("12_1.0"), start)


def render(status: TrainStatus) -> str:
    console = Console(width=200)
    with console.capture() as caught:
        console.print(status_block(status, NOW))
    return caught.get()


def test_running_and_waiting_tasks_are_shown(run: RunDir) -> None:
    status = read(
        run,
        row(JobState.RUNNING, 1, nodes="node[001-002]", start=NOW - timedelta(minutes=5), end=NOW + timedelta(hours=2)),
        row(JobState.PENDING, 2, 3, 4, 5, reason="JobArrayTaskLimit"),
    )
    assert status.state == "running"
    assert "12_1 on node[001-002], 5m, 2h until its limit" in render(status)
    assert "4 tasks of array 12: waiting for the previous task" in render(status)


def test_state_is_held_only_if_no_task_runs(run: RunDir) -> None:
    held = row(JobState.PENDING, 2, reason="JobHeldUser")
    assert read(run, held).state == "held"
    assert read(run, held, row(JobState.RUNNING, 1)).state == "running"


def test_permanent_wait_reason_is_noted(run: RunDir) -> None:
    status = read(run, row(JobState.PENDING, 2, reason="DependencyNeverSatisfied"))
    assert "will never start: the job before it failed" in render(status)
    assert status.notes == ("something queued will never start: see the reason above",)


def test_unknown_wait_reason_is_shown_verbatim(run: RunDir) -> None:
    assert read(run, row(JobState.PENDING, 2, reason="SomethingNew")).waiting[0].why == "SomethingNew"


@pytest.mark.parametrize(*read_cases(__file__, "account_limit_is_explained_with_a_remedy"))
def test_account_limit_is_explained_with_a_remedy(run: RunDir, reason: str, text: str) -> None:
    status = read(run, row(JobState.PENDING, 2, reason=reason))
    assert status.waiting[0].why == f"{text} ({reason})"
    assert f"opsctl preflight {run.config} says which limits" in status.notes[-1]


def test_reused_array_id_is_noted(run: RunDir) -> None:
    status = read(run, row(JobState.RUNNING, 1, comment="somebody else's"))
    assert status.state == "ended"
    text = f"array 12 is not this train's any more: Slurm has used the id again for 'gpt' of {actor()}"
    assert status.notes == (text,)


def test_unfinalized_attempt_outside_the_queue_is_unknown(run: RunDir) -> None:
    Journal(run, SystemClock()).append(AttemptStarted(attempt="12_1.0", nodes="node001"))
    assert read(run).state == "unknown"


def test_train_is_finished_after_a_finished_attempt(run: RunDir) -> None:
    journal = Journal(run, SystemClock())
    journal.append(AttemptStarted(attempt="12_1.0", nodes="node001"))
    journal.append(AttemptFinalized(attempt="12_1.0", outcome="finished", action="cancel-queued", why="the last step"))
    assert read(run).state == "finished"
    assert "12_1.0 finished " in render(read(run))


def test_progress_comes_from_a_megatron_log(run: RunDir) -> None:
    run.main_log.write_text("".join(LINE.format(step) + "\n" for step in (10, 20, 30)))
    progress = read(run).progress
    assert progress is not None
    assert (progress.step, progress.last_step, progress.loss) == (30, 150, 2.5)


def test_newer_heartbeat_overrides_the_log(run: RunDir) -> None:
    run.main_log.write_text(LINE.format(10) + "\n")
    heartbeat = Heartbeat(
        attempt="12_1.0", node="n", rank=0, phase=Phase.SAVE, step=17, at=1.0, limit_s=60, checkpoint_step=10
    )
    (run.heartbeat / "train.json").write_text(to_json(heartbeat))
    progress = read(run, row(JobState.RUNNING, 1)).progress
    assert progress is not None
    assert (progress.step, progress.phase, progress.checkpoint_step) == (17, "save", 10)


def test_switches_and_requests_are_shown(run: RunDir) -> None:
    switches.arm(run, Switch.KILL, why="wrong data")
    switches.request(run, RequestKind.RELEASE)
    text = render(read(run))
    assert "kill switch" in text
    assert "wrong data" in text
    assert "`opsctl watch` carries it out" in text


def test_remaining_time_is_shown_only_while_running(run: RunDir) -> None:
    run.main_log.write_text("".join(LINE.format(step) + "\n" for step in (10, 20, 30)))
    running = read(run, row(JobState.RUNNING, 1))
    assert running.progress is not None
    assert running.progress.left is not None
    assert running.progress.left.likely == 60.0
    assert "left        1m, until " in render(running)
    held = read(run, row(JobState.PENDING, 2, reason="JobHeldUser"))
    assert held.progress is not None
    assert held.progress.left is None
    assert "left" not in render(held)


def test_missing_tasks_are_noted_with_the_command(run: RunDir) -> None:
    run.config.write_text('[slurm]\ntime_limit = "1"\n')
    run.main_log.write_text(LINE.format(10) + "\n")
    half_done = row(JobState.RUNNING, 1, start=NOW, end=NOW + timedelta(seconds=30))
    assert read(run, half_done).remarks == (
        f"at this pace, tasks still needed: 1, queued: 0; opsctl launch {run.config} --after 12 --tasks 1",
    )
    assert read(run, half_done, row(JobState.PENDING, 2, reason="JobArrayTaskLimit")).remarks == ()


def test_new_train_has_no_progress_yet(run: RunDir) -> None:
    status = read(run, row(JobState.RUNNING, 1, start=NOW))
    assert (status.state, status.progress) == ("running", None)
    assert "progress  none yet: neither a heartbeat nor an iteration in its log" in render(status)


def test_pace_is_compared_with_the_median(run: RunDir) -> None:
    fast, slow = LINE.replace("149.2", "150"), LINE.replace("149.2", "120")
    run.main_log.write_text("".join(fast.format(n) + "\n" for n in range(1, 2000)))
    assert "0.5 s a step · 150 TFLOPs (as usual)" in render(read(run))
    with run.main_log.open("a") as log:
        log.writelines(slow.format(n) + "\n" for n in range(2000, 2030))
    assert "0.5 s a step · 120 TFLOPs (20 % below the run's median of 150)" in render(read(run))


def test_unsubmitted_train_has_not_ended(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "new")
    run.create()
    journal = Journal(run, SystemClock())
    assert read_status(run, journal, [], NOW).state == "not submitted"
    journal.append(Submitting(nonce="n1", tasks=5, after=""))
    assert read_status(run, journal, [], NOW).state == "unknown"
    journal.append(SubmitRefused(nonce="n1", why="no such partition"))
    assert read_status(run, journal, [], NOW).state == "not submitted"


def test_note_of_the_trainer_is_shown_while_it_runs(run: RunDir) -> None:
    write_heartbeat(run, phase=Phase.TRAIN, step=5, note="no room for another checkpoint")
    assert "trainer     no room for another checkpoint" in render(read(run, row(JobState.RUNNING, 1)))
    assert "no room" not in render(read(run))


def test_silent_log_is_shown_without_a_heartbeat(run: RunDir) -> None:
    run.main_log.write_text(LINE.format(30) + "\n")
    ago = (NOW - timedelta(hours=2)).timestamp()
    os.utime(run.main_log, (ago, ago))
    assert "step 30 of 150 · 20 % · last heartbeat 2h ago" in render(read(run, row(JobState.RUNNING, 1)))


def test_queued_train_shows_no_progress(run: RunDir) -> None:
    status = read(run, row(JobState.PENDING, 1, reason="Priority"))
    assert (status.state, status.progress) == ("queued", None)
    assert "progress" not in render(status)


def test_starting_trainer_shows_the_last_step_and_phase(run: RunDir) -> None:
    run.main_log.write_text(LINE.format(30) + "\n")
    write_heartbeat(run, phase=Phase.INIT, step=0)
    text = render(read(run, row(JobState.RUNNING, 1)))
    assert "step 30 of 150 · 20 % · in init" in text


def test_rollback_shows_the_step_of_the_new_attempt(run: RunDir) -> None:
    run.main_log.write_text(LINE.format(30) + "\n")
    start_attempt(run, main_log=run.main_log.stat().st_size)
    write_heartbeat(run, phase=Phase.TRAIN, step=21, loss=3.5)
    progress = read(run, row(JobState.RUNNING, 1)).progress
    assert progress is not None
    assert (progress.step, progress.loss) == (21, 3.5)
    with run.main_log.open("a") as log:
        log.write(LINE.format(22) + "\n")
    progress = read(run, row(JobState.RUNNING, 1)).progress
    assert progress is not None
    assert (progress.step, progress.loss) == (22, 2.5)


INVALID_LOGS = [
    b"",
    b"\x00\xff" * 5000,
    b"iteration 5/ 9 |" + b" nan" * 9,
    b"iteration x/ y | lm loss: 1 |\n" * 99,
]
INVALID_HEARTBEAT = {"step": "many", "phase": "train", "attempt": 1, "node": 2, "rank": 3, "at": None, "limit_s": []}


@pytest.mark.parametrize("content", INVALID_LOGS)
def test_invalid_log_and_heartbeat_show_no_progress(run: RunDir, content: bytes) -> None:
    run.main_log.write_bytes(content)
    (run.heartbeat / "train.json").write_text(json.dumps(INVALID_HEARTBEAT))
    status = read(run, row(JobState.RUNNING, 1))
    assert status.progress is None or status.progress.step == 5
    assert "12_1" in render(status)


def test_last_attempt_has_cause_time_and_advice(run: RunDir) -> None:
    journal = Journal(run, SystemClock())
    journal.append(AttemptStarted(attempt="12_1.0", nodes="node001"))
    journal.append(
        make_diagnosed(
            attempt="12_1.0",
            cause="xid79",
            says="GPU fell off the bus",
            node="node001",
            rank=3,
            advice="drain it",
        )
    )
    journal.append(AttemptFinalized(attempt="12_1.0", outcome="crashed", action="continue", why="GPU fell off the bus"))
    later = read_status(run, journal, [], journal.clock.now() + timedelta(hours=2))
    console = Console(width=200)
    with console.capture() as caught:
        console.print(status_block(later, journal.clock.now() + timedelta(hours=2)))
    assert "12_1.0 crashed 2h ago: GPU fell off the bus" in caught.get()
    assert "advice        drain it" in caught.get()


@pytest.mark.parametrize("width", [80, 200])
def test_lines_fit_the_terminal(run: RunDir, width: int) -> None:
    run.config.write_text('[slurm]\ntime_limit = "1"\n')
    run.main_log.write_text("".join(LINE.format(step) + "\n" for step in range(1, 60)))
    console = Console(width=width)
    with console.capture() as caught:
        console.print(status_block(read(run, row(JobState.RUNNING, 1, start=NOW)), NOW))
    assert max(map(len, caught.get().splitlines())) <= width
    assert caught.get().count("since step 1") == 1


def test_open_alerts_are_shown_worst_first(run: RunDir) -> None:
    ledger = AlertLedger(SiteDir.of(run.path.parent), SystemClock(), AlertSettings(warning_looks=1))
    rows = read_table(__file__, "findings")
    ledger.record([make_finding(**fields, is_certain=True) for fields in rows])
    ledger.ack("loss/gpt", "on it")
    alerts = open_alerts(LedgerFiles(ledger.site), NOW)
    status = read_status(run, Journal(run, SystemClock()), [row(JobState.RUNNING, 1)], NOW, alerts)
    assert [alert.key for alert in status.alerts] == ["hang/gpt", "loss/gpt"]
    text = render(status)
    assert "critical  no step for 2 h" in text
    assert "warning   a spike (acknowledged)" in text


def test_nan_and_infinity_are_null_in_json() -> None:
    assert to_data({"loss": math.nan, "all": (1.0, math.inf)}) == {"loss": None, "all": [1.0, None]}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h"), (90061, "1d 1h"), (-5, "5s")]
)
def test_duration_has_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


TRAIN = 'name = "gpt"\ncommand = ["train"]\n[slurm]\nnodes = 1\ntime_limit = "2"\n'


def test_checkpoints_that_seem_incomplete_are_no_missing_ones(run: RunDir) -> None:
    run.config.write_text(TRAIN)
    for step in (20, 40):
        (run.checkpoints / f"iter_{step:07}").mkdir(parents=True)
        (run.checkpoints / f"iter_{step:07}" / "weights.bin").write_text("1")
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text("40")
    run.main_log.write_text(LINE.format(50) + "\n")
    note = "2 found, none recognised as complete: iter_0000040: mp_rank_*/model_*rng.pt is missing or empty"
    status = read(run, row(JobState.RUNNING, 1, start=NOW))
    assert f"checkpoint {note}" in " ".join(render(status).split())


def test_epochs_are_shown_where_no_step_is_known(run: RunDir) -> None:
    run.config.write_text(TRAIN)
    run.main_log.write_text("{'loss': 2.5, 'epoch': 0.01}\n{'loss': 2.25, 'epoch': 0.52}\n")
    words = render(read(run, row(JobState.RUNNING, 1, start=NOW))).split()
    assert "progress epoch 0.52 loss 2.25" in " ".join(words)


def test_status_says_so_if_the_trainer_does_not_read_the_save_switch(run: RunDir) -> None:
    run.body.write_text("srun python train.py\n")
    switches.arm(run, Switch.SAVE, why="")
    assert read(run, row(JobState.PENDING, 1)).notes == ()
    since = datetime.now(UTC) - timedelta(minutes=1)
    [note] = read_status(
        run, Journal(run, SystemClock()), [row(JobState.RUNNING, 1, start=since)], datetime.now(UTC)
    ).notes
    assert "name TRAIN_SAVE_SWITCH, so the trainer probably does not read it" in note
    assert note.endswith("opsctl save-switch gpt --disarm takes it back")
    run.body.write_text("srun python -m opsctl_contract train.py\n")
    running = row(JobState.RUNNING, 1, start=since)
    assert read_status(run, Journal(run, SystemClock()), [running], datetime.now(UTC)).notes == ()
