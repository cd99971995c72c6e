"""The guard in batch jobs of a real Slurm."""

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from opsctl.base.model import JobState
from opsctl.launch.render import render
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from opsctl.state import switches
from opsctl.state.events import AttemptFinalized, AttemptStarted, Held
from opsctl.state.switches import Switch
from tests.support.cases import read_cases
from tests.support.guarded_trains import GuardedTrain, until
from tests.support.reconciled_roots import reconcile_root

WAIT_FOR_STOP_REQUEST = 'touch begun; while [ ! -e "$TRAIN_STOP_REQUEST" ]; do sleep 0.05; done'
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


def test_slurm_sees_the_exit_code_of_the_body(make: Make) -> None:
    trains = {code: make() for code in (0, 1, 85)}
    for code, guarded_train in trains.items():
        guarded_train.submit(f"exit {code}")
    for code, guarded_train in trains.items():
        guarded_train.wait()
        assert (guarded_train.task(1).exit_code, guarded_train.end()["outcome"]) == (
            f"{code}:0",
            "crashed" if code else "idle",
        )


def test_armed_kill_switch_cancels_queued_tasks_at_start(train: GuardedTrain) -> None:
    switches.arm(train.run, Switch.KILL, why="bad data")
    train.submit("touch begun", tasks=3)
    train.wait()
    assert train.waiting == []
    assert train.end()["outcome"] == "killed"
    assert train.task(1).state is JobState.COMPLETED
    assert not (train.run.path / "begun").exists()


def test_armed_pause_switch_holds_queued_tasks_at_start(train: GuardedTrain) -> None:
    switches.arm(train.run, Switch.PAUSE, why="")
    train.submit("touch begun", tasks=3)
    train.wait()
    assert [(job.tasks, job.is_held) for job in train.waiting] == [((2, 3), True)]
    assert train.end()["outcome"] == "paused"
    assert not (train.run.path / "begun").exists()


def test_switch_reaches_foreign_trainer_as_stop_request(train: GuardedTrain) -> None:
    train.submit(WAIT_FOR_STOP_REQUEST, tasks=3)
    train.wait_for("begun")
    switches.arm(train.run, Switch.PAUSE, why="maintenance")
    train.wait()
    end = train.end()
    assert (end["outcome"], end["why"].endswith(": maintenance")) == ("paused", True)
    assert [job.is_held for job in train.waiting] == [True]


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_signal_reaches_the_body_as_stop_request(train: GuardedTrain, name: str) -> None:
    array = train.submit(f"{WAIT_FOR_STOP_REQUEST}; sleep 0.3; touch saved")
    train.wait_for("begun")
    train.run_slurm("scancel", "--batch", f"--signal={name}", f"{array}_1")
    train.wait()
    assert (train.run.path / "saved").exists()
    assert (train.end()["outcome"], train.task(1).exit_code) == ("stopped", "0:0")


def test_two_short_crashes_hold_queued_tasks(make: Make) -> None:
    train = make("poll_seconds = 0.2\nshort_attempts = 2")
    train.submit("exit 3", tasks=4)
    train.wait()
    [held] = train.waiting
    assert (held.tasks, held.is_held) == ((2, 3, 4), True)
    assert len(train.events(Held)) == 1
    actions = [event.action for event in train.events(AttemptFinalized)]
    assert actions == ["continue", "hold-queued"]


def test_finished_train_has_queued_tasks_cancelled(train: GuardedTrain) -> None:
    train.submit(FINISHED, tasks=4)
    train.wait()
    assert train.waiting == []
    assert train.end()["action"] == "cancel-queued"


def test_last_iteration_in_the_log_means_finished(train: GuardedTrain) -> None:
    train.submit('echo " iteration 40/ 40 | lm loss: 2.0E+00 |"', tasks=2)
    train.wait()
    assert (train.end()["outcome"], train.waiting) == ("finished", [])


@pytest.mark.parametrize(*read_cases(__file__, "finished_foreign_train_is_not_started_again"))
def test_finished_foreign_train_is_not_started_again(train: GuardedTrain, body: str) -> None:
    train.submit(body, tasks=5)
    train.wait()
    assert (train.end()["outcome"], train.waiting) == ("finished", [])
    assert [event.attempt for event in train.events(AttemptStarted)] == [train.attempt().name]
    assert train.events(Held) == []


def test_foreign_train_with_steps_left_goes_on(train: GuardedTrain) -> None:
    """The second task finds nothing to do, although its log never showed the last step."""
    first, second = 'echo " iteration 36/ 40 | lm loss: 2.0E+00 |"', 'echo "Checkpoint successfully loaded"'
    train.submit(f'cd "$TRAIN_RUN_DIR"; if [ -e done ]; then {second}; else {first}; fi; touch done', tasks=4)
    train.wait()
    assert [train.end(task)["outcome"] for task in (1, 2)] == ["exited", "finished"]
    assert train.waiting == []


def test_exit_0_continues_where_the_settings_say_so(make: Make) -> None:
    train = make('poll_seconds = 0.2\non_exit_0 = "continue"\nshort_attempts = 9')
    train.submit("exit 0", tasks=2)
    train.wait()
    assert [train.end(task)["outcome"] for task in (1, 2)] == ["exited", "exited"]


def test_cancelled_attempt_leaves_no_process(train: GuardedTrain) -> None:
    array = train.submit('touch "begun-$SLURM_ARRAY_TASK_ID"; sleep 300 & setsid sleep 300', tasks=2)
    train.wait_for("begun-1")
    train.run_slurm("scancel", f"{array}_1")
    train.wait_for("begun-2")
    assert train.end()["outcome"] == "cancelled"
    assert find_processes(train, "_1.0") == []


def test_processes_left_by_the_body_are_ended(train: GuardedTrain) -> None:
    train.submit("setsid sleep 300 & (trap '' TERM; sleep 300) & exit 0")
    train.wait()
    assert find_processes(train) == []


def test_saving_ranks_outlive_the_shell_of_the_body(train: GuardedTrain) -> None:
    train.submit(f"bash -c 'trap \"\" TERM; {WAIT_FOR_STOP_REQUEST}; sleep 3.5; touch saved'; true")
    train.wait_for("begun")
    [shell] = find_processes(train, command=["bash", str(train.run.body)])
    guard = find_guard(train)
    shell.terminate()  # as scancel does; scancel would leave less than five seconds for the rest
    os.kill(guard, signal.SIGTERM)
    train.wait()
    assert (train.run.path / "saved").exists()
    assert train.end()["outcome"] == "cancelled"


def test_body_is_ended_after_a_rank_has_failed(make: Make) -> None:
    train = make("poll_seconds = 0.2\nexit_grace_seconds = 0.5")
    train.submit('echo 3 >"$TRAIN_ATTEMPT_LOGS/first-exit"; exec sleep 300')
    train.wait()
    assert find_processes(train) == []
    assert (train.task(1).exit_code, train.end()["outcome"]) == ("3:0", "crashed")


def find_processes(train: GuardedTrain, attempt: str = "", command: list[str] | None = None) -> list[psutil.Process]:
    """Return the processes of a train's bodies.

    `attempt` limits them to attempts whose names end with the text, `command` to processes with this command line.
    """
    matches = []
    for process in psutil.process_iter():
        try:  # any process may end at any time
            env = process.environ()
            has_command = command is None or process.cmdline() == command
        except psutil.Error:
            continue
        is_of_train = env.get("TRAIN_RUN_DIR") == str(train.run.path)
        if is_of_train and env.get("TRAIN_ATTEMPT", "").endswith(attempt) and has_command:
            matches.append(process)
    return matches


def find_guard(train: GuardedTrain) -> int:
    """Return the process id of the only guard. The body supervisor is a fork of the guard."""
    processes = [process.info for process in psutil.process_iter(["pid", "ppid", "cmdline"])]
    guards = [process for process in processes if str(train.run.path) in (process["cmdline"] or [])]
    parents = {process["pid"]: process["ppid"] for process in guards}
    [guard] = [pid for pid, parent in parents.items() if parent not in parents]
    return guard


def test_attempt_of_killed_guard_is_finalized_by_the_next(train: GuardedTrain) -> None:
    second = '[ "$SLURM_ARRAY_TASK_ID" = 2 ] && touch "$TRAIN_FINISHED" && exit 0'
    body = f'touch "begun-$SLURM_ARRAY_TASK_ID"; {second}; setsid sleep 300 & sleep 300'
    train.submit(body, tasks=2)
    train.wait_for("begun-1")
    until(lambda: len(find_processes(train)) >= 3)
    os.kill(find_guard(train), signal.SIGKILL)
    train.wait()
    assert find_processes(train) == []
    assert train.end(1)["outcome"] == "crashed"
    assert train.end(2)["outcome"] == "finished"


def test_finished_train_runs_no_body_after_killed_guard(train: GuardedTrain) -> None:
    train.submit(f'{FINISHED}; touch "begun-$SLURM_ARRAY_TASK_ID"; sleep 300', tasks=3)
    train.wait_for("begun-1")
    os.kill(find_guard(train), signal.SIGKILL)
    train.wait()
    assert train.waiting == []
    assert [train.end(task)["outcome"] for task in (1, 2)] == ["finished", "skipped"]
    assert not (train.run.path / "begun-2").exists()


def test_attempt_on_dead_node_is_finalized_by_next_guard(fresh_slurm: Callable[..., Sandbox], make: Make) -> None:
    sandbox = fresh_slurm(nodes=2)
    train = make(sandbox=sandbox)
    array = train.submit('touch "begun-$SLURM_ARRAY_TASK_ID"; [ "$SLURM_ARRAY_TASK_ID" = 2 ] || sleep 300', tasks=2)
    train.wait_for("begun-1")
    node = train.task(1).nodes
    os.kill(find_guard(train), signal.SIGSTOP)  # in a power cut the guard does not see the body die
    sandbox.fault(node, FaultKind.CRASH)
    # Slurm would notice the dead node after SlurmdTimeout.
    train.run_slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=dead")
    train.wait_for("begun-2")
    assert train.end(1)["outcome"] == "node-failed"
    assert train.events(AttemptFinalized)[0].attempt == f"{array}_1.0"


def test_deadline_follows_the_end_of_the_job(train: GuardedTrain) -> None:
    array = train.submit(f"echo $TRAIN_MINUTES_LEFT >minutes; {WAIT_FOR_STOP_REQUEST}", limit="1")
    until(train.attempt().deadline.exists)
    before = float(train.attempt().deadline.read_text())
    end = train.task(1).end
    assert end is not None and before == end.timestamp()
    train.run_slurm("scontrol", "update", f"JobId={array}_1", "TimeLimit=9")
    until(lambda: float(train.attempt().deadline.read_text()) == before + 8 * 60)
    assert train.read_file("minutes") == "1\n"


def test_environment_is_recorded_without_secrets(train: GuardedTrain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_TOKEN", "hunter2")
    monkeypatch.setenv("INDEX", "https://me:hunter2@example.org/simple")
    monkeypatch.setenv("LOADEDMODULES", "cuda/12:nccl/2.20")
    step = "echo ' iteration 1/ 9 | lm loss: 2.5 |'"
    train.submit(
        f'{step}; until [ -s "$TRAIN_RUN_DIR/attempts/$TRAIN_ATTEMPT/repro/packages.txt" ]; do sleep 0.1; done'
    )
    train.wait()
    repro = train.attempt().repro
    assert repro.stat().st_mode & 0o777 == 0o700
    env = json.loads((repro / "env.json").read_text())
    assert (env["HUB_TOKEN"], env["INDEX"]) == ("(hidden)", "https://(hidden)@example.org/simple")
    assert (repro / "modules.txt").read_text() == "cuda/12\nnccl/2.20\n"
    assert "psutil==" in (repro / "packages.txt").read_text()
    start = json.loads(train.attempt().start.read_text())
    assert (start["node_count"], start["nodes"]) == (1, train.task(1).nodes)


BODY = """printf '%s\\n' "$TRAIN_ATTEMPT" "$TRAIN_STOP_REQUEST" "$TRAIN_ATTEMPT_LOGS" "$TRAIN_NODE" >environment
[ -s "$TRAIN_DEADLINE" ]"""


@pytest.mark.parametrize("broken", ["missing", "no opsctl", "no site"])
def test_body_runs_without_a_working_guard(train: GuardedTrain, tmp_path: Path, broken: str) -> None:
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
    assert train.read_file("environment").splitlines() == [
        attempt.name,
        str(attempt.stop_request),
        str(train.run.attempt_logs(attempt.name)),
        node,
    ]
    assert "continuing without the guard" in train.log


def test_body_runs_where_the_guard_cannot_write(train: GuardedTrain) -> None:
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
    train.submitted.append(train.runner.run(argv, timeout=250).out.strip())
    train.wait()
    assert train.jobs[0].exit_code == "85:0", train.log
    assert (train.run.path / "begun").exists()
    assert train.log.count("recording the start") == 1


def test_vanished_run_directory_stops_no_body(
    train: GuardedTrain,
) -> None:
    train.submit("touch begun; sleep 1.5; exit 3")
    train.wait_for("begun")
    away = train.run.path.rename(train.path / "away")
    until(lambda: train.task(1).state.is_final)
    assert train.task(1).exit_code == "3:0"
    away.rename(train.run.path)
    assert not train.attempt().end.exists()
    [reconciled] = reconcile_root(train.path, train.slurm, lambda run: train.arrays)
    assert reconciled.done[0].startswith(f"finalized {train.attempt().name}: crashed, continue: Slurm reports FAILED")


@pytest.mark.parametrize(("switch", "left"), [(Switch.KILL, 0), (Switch.PAUSE, 1)])
def test_switches_work_without_a_guard(train: GuardedTrain, switch: Switch, left: int) -> None:
    switches.arm(train.run, switch, why="")
    train.submit("touch begun", tasks=3, python="/nowhere/python")
    train.wait()
    assert [job.is_held for job in train.waiting] == [True] * left
    assert not (train.run.path / "begun").exists()


def test_slow_answer_of_slurm_delays_no_body(
    train: GuardedTrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "squeue"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 8\nexec {shutil.which("squeue")} "$@"\n')
    slow.chmod(0o755)
    with monkeypatch.context() as patch:  # for the job; the test itself asks the fast one
        patch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
        train.submit('date +%s >begun; echo "$TRAIN_MINUTES_LEFT" >minutes; sleep 9', limit="30")
    train.wait()
    started = datetime.fromisoformat(json.loads(train.attempt().start.read_text())["at"])
    assert int(train.read_file("begun")) - started.timestamp() < 4
    assert train.read_file("minutes") == "27\n", "the limit less the grace"
    assert train.attempt().deadline.exists()


def test_signals_and_exit_code_pass_without_a_guard(train: GuardedTrain) -> None:
    array = train.submit(f"{WAIT_FOR_STOP_REQUEST}; sleep 0.3; exit 85", python="/nowhere/python")
    train.wait_for("begun")
    train.run_slurm("scancel", "--batch", "--signal=USR1", f"{array}_1")
    train.wait()
    assert train.task(1).exit_code == "85:0"


def test_body_writable_by_others_is_refused_and_train_held(train: GuardedTrain) -> None:
    train.submit("touch begun", tasks=2, mode=0o777)
    train.wait()
    assert not (train.run.path / "begun").exists()
    assert (train.end()["outcome"], train.task(1).exit_code) == ("refused", "1:0")
    assert [job.is_held for job in train.waiting] == [True]
    assert f"{train.run.body}: mode 0777 lets others write" in train.log
