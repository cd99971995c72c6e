"""What a batch job becomes, under a real Slurm."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from opsctl.model import JobState
from opsctl.monitor.reconcile import reconcile_root
from opsctl.render import render
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.state import switches
from opsctl.state.journal import EventKind
from opsctl.state.switches import Switch
from tests.support.guarded_trains import GuardedTrain, until

UNTIL_ASKED = 'touch begun; while [ ! -e "$TRAIN_STOP_REQUEST" ]; do sleep 0.05; done'
FINISHED = """echo '{"reason": "finished", "step": 40, "at": 1.0}' >"$TRAIN_STOP_REASON" """
Make = Callable[..., GuardedTrain]


@pytest.fixture
def make(tmp_path: Path, slurm: Sandbox) -> Iterator[Make]:
    made: list[GuardedTrain] = []

    def train(guard: str = "poll_seconds = 0.2", sandbox: Sandbox = slurm) -> GuardedTrain:
        path = tmp_path / str(len(made))
        path.mkdir()
        made.append(GuardedTrain(path, sandbox, guard))
        return made[-1]

    yield train
    for guarded_train in made:
        guarded_train.clear()


@pytest.fixture
def train(make: Make) -> GuardedTrain:
    return make()


def test_the_bodys_exit_code_is_what_slurm_sees(make: Make) -> None:
    trains = {code: make() for code in (0, 1, 85)}
    for code, guarded_train in trains.items():
        guarded_train.submit(f"exit {code}")
    for code, guarded_train in trains.items():
        guarded_train.wait()
        assert (guarded_train.task(1).exit_code, guarded_train.end()["outcome"]) == (
            f"{code}:0",
            "crashed" if code else "exited",
        )


def test_a_kill_switch_that_is_armed_before_the_start_cancels_what_is_queued(train: GuardedTrain) -> None:
    switches.arm(train.run, Switch.KILL, why="bad data")
    train.submit("touch begun", tasks=3)
    train.wait()
    assert train.waiting == []
    assert train.end()["outcome"] == "killed"
    assert train.task(1).state is JobState.COMPLETED
    assert not (train.run.path / "begun").exists()


def test_a_pause_switch_that_is_armed_before_the_start_holds_the_rest(train: GuardedTrain) -> None:
    switches.arm(train.run, Switch.PAUSE, why="")
    train.submit("touch begun", tasks=3)
    train.wait()
    assert [(job.tasks, job.is_held) for job in train.waiting] == [((2, 3), True)]
    assert train.end()["outcome"] == "paused"
    assert not (train.run.path / "begun").exists()


def test_a_switch_reaches_a_foreign_trainer_as_its_stop_request(train: GuardedTrain) -> None:
    train.submit(UNTIL_ASKED, tasks=3)
    train.wait_for("begun")
    switches.arm(train.run, Switch.PAUSE, why="maintenance")
    train.wait()
    end = train.end()
    assert (end["outcome"], end["why"].endswith(": maintenance")) == ("paused", True)
    assert [job.is_held for job in train.waiting] == [True]


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_a_signal_to_the_batch_job_reaches_the_body_as_a_stop_request(train: GuardedTrain, name: str) -> None:
    array = train.submit(f"{UNTIL_ASKED}; sleep 0.3; touch saved")
    train.wait_for("begun")
    train.slurm("scancel", "--batch", f"--signal={name}", f"{array}_1")
    train.wait()
    assert (train.run.path / "saved").exists()
    assert (train.end()["outcome"], train.task(1).exit_code) == ("stopped", "0:0")


def test_two_short_crashes_hold_what_is_queued(make: Make) -> None:
    train = make("poll_seconds = 0.2\nshort_attempts = 2")
    train.submit("exit 3", tasks=4)
    train.wait()
    [held] = train.waiting
    assert (held.tasks, held.is_held) == ((3, 4), True)
    assert len(train.events(EventKind.HELD)) == 1
    assert train.end(2)["action"] == "hold-queued"


def test_a_train_that_finished_has_what_is_queued_cancelled(train: GuardedTrain) -> None:
    train.submit(FINISHED, tasks=4)
    train.wait()
    assert train.waiting == []
    assert train.end()["action"] == "cancel-queued"


def test_a_foreign_trainer_whose_log_ends_with_the_last_iteration_has_finished(train: GuardedTrain) -> None:
    train.submit('echo " iteration 40/ 40 | lm loss: 2.0E+00 |"', tasks=2)
    train.wait()
    assert (train.end()["outcome"], train.waiting) == ("finished", [])


def test_a_attempt_that_was_cancelled_leaves_nothing_behind_and_the_next_task_goes_on(train: GuardedTrain) -> None:
    array = train.submit('touch "begun-$SLURM_ARRAY_TASK_ID"; sleep 300 & setsid sleep 300', tasks=2)
    train.wait_for("begun-1")
    train.slurm("scancel", f"{array}_1")
    train.wait_for("begun-2")
    assert train.end()["outcome"] == "cancelled"
    assert of_attempt(train, "_1.0") == []


def test_what_a_body_leaves_running_ends_with_it(train: GuardedTrain) -> None:
    train.submit("setsid sleep 300 & (trap '' TERM; sleep 300) & exit 0")
    train.wait()
    assert of_attempt(train) == []


def test_ranks_that_save_are_not_cut_short_by_the_shell_that_goes_first(train: GuardedTrain) -> None:
    train.submit(f"bash -c 'trap \"\" TERM; {UNTIL_ASKED}; sleep 3.5; touch saved'; true")
    train.wait_for("begun")
    [shell] = of_attempt(train, command=["bash", str(train.run.body)])
    guard = guard_of(train)
    shell.terminate()  # as a scancel does, which would leave less than five seconds for the rest
    os.kill(guard, signal.SIGTERM)
    train.wait()
    assert (train.run.path / "saved").exists()
    assert train.end()["outcome"] == "cancelled"


def test_what_outlives_a_rank_that_failed_is_ended_as_when_srun_waits_for_a_dead_node(make: Make) -> None:
    train = make("poll_seconds = 0.2\nexit_grace_seconds = 0.5")
    train.submit('echo 3 >"$TRAIN_ATTEMPT_LOGS/first-exit"; exec sleep 300')
    train.wait()
    assert of_attempt(train) == []
    assert (train.task(1).exit_code, train.end()["outcome"]) == ("3:0", "crashed")


def of_attempt(train: GuardedTrain, attempt: str = "", command: list[str] | None = None) -> list[psutil.Process]:
    """The processes below the bodies of a train: of the attempts whose names end so, and with that command line."""
    found = []
    for process in psutil.process_iter():
        try:  # any may end at any time
            env = process.environ()
            is_asked = command is None or process.cmdline() == command
        except psutil.Error:
            continue
        if (
            env.get("TRAIN_RUN_DIR") == str(train.run.path)
            and env.get("TRAIN_ATTEMPT", "").endswith(attempt)
            and is_asked
        ):
            found.append(process)
    return found


def guard_of(train: GuardedTrain) -> int:
    """The guard of the one attempt that runs; the keeper of the body is a fork of it."""
    known = [process.info for process in psutil.process_iter(["pid", "ppid", "cmdline"])]
    ours = {
        incompletes["pid"]: incompletes["ppid"]
        for incompletes in known
        if str(train.run.path) in (incompletes["cmdline"] or [])
    }
    [guard] = [pid for pid, parent in ours.items() if parent not in ours]
    return guard


def test_a_guard_that_is_killed_leaves_no_process_and_is_finalized_by_the_next_one(train: GuardedTrain) -> None:
    body = 'touch "begun-$SLURM_ARRAY_TASK_ID"; [ "$SLURM_ARRAY_TASK_ID" = 2 ] && exit 0; setsid sleep 300 & sleep 300'
    train.submit(body, tasks=2)
    train.wait_for("begun-1")
    until(lambda: len(of_attempt(train)) >= 3)
    os.kill(guard_of(train), signal.SIGKILL)
    train.wait()
    assert of_attempt(train) == []
    assert train.end(1)["outcome"] == "crashed"
    assert train.end(2)["outcome"] == "exited"


def test_a_train_that_had_finished_when_its_guard_was_killed_runs_no_further_body(train: GuardedTrain) -> None:
    train.submit(f'{FINISHED}; touch "begun-$SLURM_ARRAY_TASK_ID"; sleep 300', tasks=3)
    train.wait_for("begun-1")
    os.kill(guard_of(train), signal.SIGKILL)
    train.wait()
    assert train.waiting == []
    assert [train.end(task)["outcome"] for task in (1, 2)] == ["finished", "skipped"]
    assert not (train.run.path / "begun-2").exists()


def test_a_node_that_dies_is_finalized_by_the_next_lifes_guard(fresh_slurm: Callable[..., Sandbox], make: Make) -> None:
    sandbox = fresh_slurm(nodes=2)
    train = make(sandbox=sandbox)
    array = train.submit('touch "begun-$SLURM_ARRAY_TASK_ID"; [ "$SLURM_ARRAY_TASK_ID" = 2 ] || sleep 300', tasks=2)
    train.wait_for("begun-1")
    node = train.task(1).nodes
    os.kill(guard_of(train), signal.SIGSTOP)  # or it would see the body die before itself, as no power cut lets it
    sandbox.fault(node, FaultKind.CRASH)
    # Slurm would see it by itself after SlurmdTimeout.
    train.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=dead")
    train.wait_for("begun-2")
    assert train.end(1)["outcome"] == "node-failed"
    assert train.events(EventKind.ATTEMPT_FINALIZED)[0].data["attempt"] == f"{array}_1.0"


def test_the_deadline_follows_the_jobs_real_end(train: GuardedTrain) -> None:
    array = train.submit(f"echo $TRAIN_MINUTES_LEFT >minutes; {UNTIL_ASKED}", limit="1")
    train.wait_for("begun")
    before = float(train.attempt().deadline.read_text())
    end = train.task(1).end
    assert end is not None and before == end.timestamp()
    train.slurm("scontrol", "update", f"JobId={array}_1", "TimeLimit=9")
    until(lambda: float(train.attempt().deadline.read_text()) == before + 8 * 60)
    assert train.wrote("minutes") == "1\n"


def test_what_a_attempt_ran_with_is_recorded_without_its_secrets(
    train: GuardedTrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "hunter2")
    monkeypatch.setenv("INDEX", "https://me:hunter2@example.org/simple")
    monkeypatch.setenv("LOADEDMODULES", "cuda/12:nccl/2.20")
    train.submit('until [ -s "$TRAIN_RUN_DIR/attempts/$TRAIN_ATTEMPT/repro/packages.txt" ]; do sleep 0.1; done')
    train.wait()
    repro = train.attempt().repro
    assert repro.stat().st_mode & 0o777 == 0o700
    env = json.loads((repro / "env.json").read_text())
    assert (env["HUB_TOKEN"], env["INDEX"]) == ("(hidden)", "https://(hidden)@example.org/simple")
    assert (repro / "modules.txt").read_text() == "cuda/12\nnccl/2.20\n"
    assert "psutil==" in (repro / "packages.txt").read_text()
    start = json.loads(train.attempt().start.read_text())
    assert (start["node_count"], start["nodes"]) == (1, train.task(1).nodes)


BODY = """printf '%s\\n' "$TRAIN_ATTEMPT" "$TRAIN_STOP_REQUEST" "$TRAIN_ATTEMPT_LOGS" "$TRAIN_NODE" >told
[ -s "$TRAIN_DEADLINE" ]"""


@pytest.mark.parametrize("broken", ["missing", "no opsctl", "no site"])
def test_a_guard_that_cannot_start_still_runs_the_body(train: GuardedTrain, tmp_path: Path, broken: str) -> None:
    python = sys.executable
    if broken == "missing":
        python = "/nowhere/python"
    elif broken == "no opsctl":
        fake = tmp_path / "python"
        fake.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S "$@"\n')
        fake.chmod(0o755)
        python = str(fake)
    else:
        train.site.write_text("root = 3\n")
    train.submit(BODY, python=python)
    train.wait()
    attempt = train.attempt()
    assert train.task(1).exit_code == "0:0", train.log
    node = train.task(1).nodes
    assert train.wrote("told").splitlines() == [
        attempt.name,
        str(attempt.stop_request),
        str(train.run.attempt_logs(attempt.name)),
        node,
    ]
    assert "continuing without the guard" in train.log


def test_a_guard_that_can_write_nothing_down_still_runs_the_body(train: GuardedTrain) -> None:
    for name in ("attempts", "journal"):
        (train.run.path / name).rename(train.run.path / f"no-{name}")
        (train.run.path / name).touch()
    train.run.write(train.run.body, f"touch {train.run.path}/begun; exit 85\n")
    text = render(
        "slurm/wrapper.slurm.j2",
        directives=["--mem=10"],
        run_dir=str(train.run.path),
        python=sys.executable,
        site_file=str(train.site),
    )
    train.run.write(train.run.wrapper, text)
    argv = ("sbatch", "--parsable", f"--output={train.run.main_log}", str(train.run.wrapper))
    train.arrays.append(train.runner.run(argv, timeout=60).out.strip())
    train.wait()
    assert train.jobs[0].exit_code == "85:0", train.log
    assert (train.run.path / "begun").exists()
    assert train.log.count("recording the start") == 1


def test_a_run_directory_that_vanishes_stops_no_body_and_the_attempt_is_finalized_when_it_is_back(
    train: GuardedTrain,
) -> None:
    train.submit("touch begun; sleep 1.5; exit 3")
    train.wait_for("begun")
    away = train.run.path.rename(train.path / "away")
    until(lambda: train.task(1).state.is_final)
    assert train.task(1).exit_code == "3:0"
    away.rename(train.run.path)
    assert not train.attempt().end.exists()
    [reconciled] = reconcile_root(train.path, train.scheduler, lambda run: train.chain)
    assert reconciled.done[0].startswith(f"finalized {train.attempt().name}: crashed, continue: Slurm reports FAILED")


@pytest.mark.parametrize(("switch", "left"), [(Switch.KILL, 0), (Switch.PAUSE, 1)])
def test_without_a_guard_the_switches_are_honoured_all_the_same(train: GuardedTrain, switch: Switch, left: int) -> None:
    switches.arm(train.run, switch, why="")
    train.submit("touch begun", tasks=3, python="/nowhere/python")
    train.wait()
    assert [job.is_held for job in train.waiting] == [True] * left
    assert not (train.run.path / "begun").exists()


def test_without_a_guard_signals_reach_the_body_and_its_exit_code_slurm(train: GuardedTrain) -> None:
    array = train.submit(f"{UNTIL_ASKED}; sleep 0.3; exit 85", python="/nowhere/python")
    train.wait_for("begun")
    train.slurm("scancel", "--batch", "--signal=USR1", f"{array}_1")
    train.wait()
    assert train.task(1).exit_code == "85:0"


def test_a_body_that_others_could_have_written_is_not_run_and_the_rest_is_held(train: GuardedTrain) -> None:
    train.submit("touch begun", tasks=2, mode=0o777)
    train.wait()
    assert not (train.run.path / "begun").exists()
    assert (train.end()["outcome"], train.task(1).exit_code) == ("refused", "1:0")
    assert [job.is_held for job in train.waiting] == [True]
    assert f"{train.run.body}: mode 0777 lets others write" in train.log
