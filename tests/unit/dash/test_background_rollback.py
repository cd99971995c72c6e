"""Rollbacks that a page starts: the process, and what the page says of every end."""

import contextlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from opsctl.actions.rollback import start_rollback
from opsctl.app import App, build
from opsctl.base.errors import InputError, RunDirError
from opsctl.base.nodesets import hostname
from opsctl.dash.steering import PageInstruction, carry_out
from opsctl.dash.train_reasons import ShownRollback, describe_rollback
from opsctl.host.processes import ProcessId, own_process
from opsctl.host.system import spawn
from opsctl.launch.rollback_state import (
    RollbackPhase,
    RollbackRecord,
    RollbackState,
    StartedRollback,
    read_rollback_state,
    read_start,
    records_dir,
    write_record,
)
from opsctl.state.lease import lease
from opsctl.state.run_dir import RunDir
from tests.support.cases import read_cases
from tests.support.saved_checkpoints import save
from tests.support.trains import until

TRAIN = "name = '{}'\ncommand = ['true']\n[slurm]\nnodes = 1\ntime_limit = '5'\n"
DONE = "t: rolled back to step 10; set aside: nothing in .rolled-back-0001\n   released array 7\n"
ENDED_PID = 2**22 + 1
"""No process has this number."""
Make = Callable[[str], RunDir]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make_train(name: str) -> RunDir:
        run = RunDir(tmp_path / "trains" / name)
        run.create()
        run.config.write_text(TRAIN.format(name))
        for path in (run.body, run.wrapper):
            path.touch()
        run.make(records_dir(run))
        save(run.checkpoints, 10)
        return run

    (tmp_path / "site.toml").write_text(f"root = '{tmp_path}/trains'\n")
    return make_train


def open_site(run: RunDir) -> App:
    return build(run.path.parents[1] / "site.toml")


def note_start(run: RunDir, output: str, *, pid: int = ENDED_PID, host: str = "", by: str = "ana") -> None:
    """Write the files of a rollback that a page has started an hour ago."""
    at = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    facts = {"step": 10, "at": at, "by": by, "host": host or hostname(), "pid": pid, "started": own_process().started}
    (records_dir(run) / "started.json").write_text(json.dumps(facts))
    (records_dir(run) / "output.txt").write_text(output)


def note_phase(run: RunDir, phase: RollbackPhase, *, number: int = 1, by: StartedRollback | None = None) -> None:
    """Write a record; `by` is the process that has carried out the rollback."""
    names = (by.name,) if by else ()
    checkpoint = "/c/step-0000010"
    write_record(
        run,
        RollbackRecord(
            number=number, phase=phase, step=10, checkpoint=checkpoint, directories=(), carried_out_by=names
        ),
    )


def read_state(run: RunDir) -> RollbackState:
    state = read_rollback_state(run, open_site(run).clock)
    assert state
    return state


def show(run: RunDir) -> ShownRollback:
    return describe_rollback(read_state(run), run.name, datetime.now(UTC))


@pytest.mark.parametrize("output", [DONE, "opsctl: t: 9 problems\n" + "  a problem\n" * 9, ""])
def test_output_is_no_result(make: Make, output: str) -> None:
    run = make("t")
    note_start(run, output)
    note_phase(run, RollbackPhase.DONE)
    shown = show(run)
    assert (shown.tone, "has failed." in shown.text) == ("amber", True)
    assert shown.lines


@pytest.mark.parametrize("later", [[], [2, 3]])
def test_process_in_a_record_has_carried_out_the_rollback(make: Make, later: list[int]) -> None:
    """Whatever it has printed, and whatever rollbacks a terminal has carried out later."""
    run = make("t")
    note_start(run, "nonsense\n")
    note_phase(run, RollbackPhase.DONE, by=read_start(run))
    for number in later:
        note_phase(run, RollbackPhase.DONE, number=number)
    shown = show(run)
    assert (shown.tone, "is done." in shown.text) == ("quiet", True)


def test_process_on_another_host_is_not_called_failed(make: Make) -> None:
    run = make("t")
    note_start(run, "verifying step-0000010\n", host="login9")
    shown = show(run)
    assert "failed" not in shown.text
    assert "cannot see the processes of login9" in shown.text


def test_undone_rollback_is_called_undone(make: Make) -> None:
    run = make("t")
    note_start(run, DONE)
    note_phase(run, RollbackPhase.UNDONE, by=read_start(run))
    assert show(run).text.endswith("by ana, is undone.")


@pytest.mark.parametrize(*read_cases(__file__, "rollback_of_a_terminal_is_not_that_of_the_page", phase=RollbackPhase))
def test_rollback_of_a_terminal_is_not_that_of_the_page(make: Make, phase: RollbackPhase, text: str) -> None:
    run = make("t")
    note_start(run, DONE)
    note_phase(run, phase)
    with lease(records_dir(run), open_site(run).clock):
        shown = show(run)
    assert (shown.text, shown.lines) == (text, ())


def test_process_that_holds_the_lease_is_that_of_the_page(make: Make) -> None:
    run = make("t")
    note_start(run, "t: waiting\n", pid=os.getpid())
    note_phase(run, RollbackPhase.BEGUN)
    with lease(records_dir(run), open_site(run).clock):
        shown = show(run)
    assert "is running, started" in shown.text
    assert shown.lines == ("t: waiting",)


@pytest.mark.parametrize(("minutes", "output", "is_running"), [(0, "", True), (0, DONE, False), (60, "", False)])
def test_start_on_another_machine_is_the_first(make: Make, minutes: int, output: str, *, is_running: bool) -> None:
    run = make("t")
    app, start = open_site(run), records_dir(run) / "started.json"
    note_start(run, output, host="login9")
    at = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()
    start.write_text(before := json.dumps({**json.loads(start.read_text()), "at": at}))
    assert read_state(run).is_running is is_running
    with pytest.raises(InputError, match="a rollback is running") if is_running else contextlib.nullcontext():
        start_rollback(app, run, 7, by="bob", reason="noon")
    assert (start.read_text() == before) is is_running
    until(lambda: is_running or not read_state(run).is_running)


def test_reused_pid_is_not_the_rollback(make: Make) -> None:
    run = make("t")
    note_start(run, DONE, pid=1)
    assert not read_state(run).is_running


def test_huge_record_of_another_user_is_not_shown(make: Make) -> None:
    run = make("t")
    note_start(run, DONE, by="x" * 10_000)
    assert read_rollback_state(run, open_site(run).clock) is None


def test_link_is_never_followed(make: Make, tmp_path: Path) -> None:
    run, secret = make("t"), tmp_path / "secret"
    note_start(run, DONE)
    secret.write_text("secret")
    output = records_dir(run) / "output.txt"
    output.unlink()
    output.symlink_to(secret)
    assert read_state(run).output == ()


def test_directory_with_the_name_of_a_train_is_no_target(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = make("t"), tmp_path / "here" / "t"
    other.mkdir(parents=True)
    (other / "train.toml").write_text(TRAIN.format("t"))
    monkeypatch.chdir(other.parent)
    app = open_site(run)
    with pytest.raises(InputError, match=r"no checkpoint of step 7; checkpoints exist of steps 10$"):
        carry_out(app, PageInstruction(verb="rollback", train="t", number=7))
    start_rollback(app, run, 7, by="ana", reason="noon")
    until(lambda: not read_state(run).is_running)
    assert "checkpoints exist of steps 10" in read_state(run).output[0]


@pytest.mark.parametrize("name", ["../t", "/etc", "./t", "-x", "", "t/train.toml"])
def test_page_acts_on_trains_of_its_site_only(make: Make, name: str) -> None:
    with pytest.raises(InputError, match="is not the name of a train"):
        carry_out(open_site(make("t")), PageInstruction(verb="rollback", train=name))


@pytest.mark.parametrize("verb", ["release", "queue"])
@pytest.mark.parametrize("confirmed", [True, False])
def test_stale_page_starts_no_task_during_a_rollback(make: Make, verb: str, *, confirmed: bool) -> None:
    run = make("t")
    app = open_site(run)
    note_phase(run, RollbackPhase.MOVED)
    instruction = PageInstruction(verb=verb, train="t", number=1, confirmed=confirmed)
    with pytest.raises(InputError, match="t: a rollback was interrupted") as refused:
        carry_out(app, instruction)
    assert refused.value.hint == "opsctl rollback t finishes the rollback"
    with lease(records_dir(run), app.clock), pytest.raises(InputError, match="t: a rollback is running"):
        carry_out(app, instruction)


def test_rollback_that_cannot_be_recorded_does_not_run(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, pids = make("t"), list[int]()

    def spawn_and_note(*words: Any, **options: Any) -> Any:
        process = spawn(*words, **options)
        pids.append(process.pid)
        return process

    monkeypatch.setattr("opsctl.actions.rollback.spawn", spawn_and_note)
    (records_dir(run) / "started.json").mkdir()
    with pytest.raises(RunDirError, match=r"started\.json"):
        start_rollback(open_site(run), run, 7, by="ana", reason="noon")
    until(lambda: ProcessId.of(pids[0]) is None)
    assert (records_dir(run) / "output.txt").read_text() == ""
