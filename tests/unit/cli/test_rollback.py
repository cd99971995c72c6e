"""What `opsctl rollback` refuses before anything changes, and the steps that the shell offers."""

import re
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import click
import pytest

from opsctl.actions import rollback, rollback_plan
from opsctl.actions.describe_rollback import describe_plan
from opsctl.actions.rollback import start_rollback
from opsctl.actions.rollback_plan import RollbackPlan, _verify_step
from opsctl.app import build
from opsctl.base.errors import ConfigError, InputError, RunDirError, WaitTimedOut
from opsctl.checkpoints.scan import list_checkpoints_in
from opsctl.cli import cli
from opsctl.dash.train_reasons import describe_rollback
from opsctl.launch.revisions import Files
from opsctl.launch.rollback_state import RollbackPhase, read_rollback_state, records_dir, to_record, write_record
from opsctl.settings.rollback import RollbackSettings
from opsctl.state.lease import LeaseBusy, find_holder
from opsctl.state.run_dir import RunDir
from opsctl.trainer import manifest
from tests.support.saved_checkpoints import flip, save
from tests.support.trains import until
from tests.unit.cli.test_completion import complete

TRAIN = "name = 't'\ncommand = ['true']\n[slurm]\nnodes = 1\ntime_limit = '5'\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    run = RunDir(tmp_path / "trains" / "t")
    run.create()
    run.config.write_text(TRAIN)
    for step in (10, 20, 200):
        save(run.checkpoints, step)
    site = tmp_path / "site.toml"
    site.write_text(f"root = '{tmp_path}/trains'\n")
    monkeypatch.setenv("OPSCTL_SITE", str(site))
    return run


def save_unknown_layout(run: RunDir, step: int) -> None:
    directory = run.checkpoints / f"step-{step}"
    directory.mkdir()
    (directory / "state.txt").write_text(str(step))


def test_damaged_checkpoint_is_refused_with_the_earlier_ones(run: RunDir) -> None:
    path = run.checkpoints / "step-0000020"
    flip(next(file for file in sorted(path.rglob("*.pt"))))
    found = list_checkpoints_in([run.checkpoints])
    with pytest.raises(InputError, match=r"step-0000020 is not good: .*changed.*checkpoints exist of steps 10$"):
        _verify_step(run, found, 20, lambda _: None)
    assert _verify_step(run, found, 10, lambda _: None)[1] == "the hash of every file is right"


def test_partial_checkpoint_is_refused(run: RunDir) -> None:
    (run.checkpoints / "step-0000020" / "COMPLETE").unlink()
    found = list_checkpoints_in([run.checkpoints])
    with pytest.raises(InputError, match=r"is not good: COMPLETE is missing"):
        _verify_step(run, found, 20, lambda _: None)


def make_plan(run: RunDir, step: int) -> RollbackPlan:
    found = list_checkpoints_in([run.checkpoints])
    chosen = next(checkpoint for checkpoint in found if checkpoint.step == step)
    record = to_record(
        RollbackSettings(), number=1, step=step, checkpoint=str(chosen.path), directories=(str(run.checkpoints),)
    )
    files = Files(config=TRAIN, trainer="", body="")
    return RollbackPlan(run=run, record=record, chosen=chosen, evidence="", newer=(), pointer=None, files=files)


def test_last_save_does_not_prune_the_chosen_checkpoint(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_and_stop(*_: object, **__: object) -> NoReturn:
        save(run.checkpoints, 300)
        for old in manifest.find_superfluous(manifest.list_checkpoints(run.checkpoints), keep_last=2):
            manifest.remove(old.path)
        raise WaitTimedOut("in time for the test")

    monkeypatch.setattr(rollback, "_stop", save_and_stop)
    plan = make_plan(run, 10)
    with pytest.raises(WaitTimedOut):
        rollback.roll_back(build(run.path.parents[1] / "site.toml"), plan, timedelta(0), show=lambda _: None)
    assert [checkpoint.step for checkpoint in list_checkpoints_in([run.checkpoints])] == [300, 200, 10]
    rollback._unprotect(plan.record)
    assert not (plan.chosen.path / manifest.KEEP).exists()


def test_edit_during_the_wait_is_kept(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(*_: object, **__: object) -> None:
        run.config.write_text(TRAIN.replace("time_limit = '5'", "time_limit = '7'"))

    monkeypatch.setattr(rollback, "_stop", edit)
    monkeypatch.setattr(rollback, "_release", lambda *_: [])
    app = build(run.path.parents[1] / "site.toml")
    rollback.roll_back(app, make_plan(run, 10), timedelta(0), show=lambda _: None)
    text = run.config.read_text()
    assert "time_limit = '7'" in text and "step = 10" in text
    assert [checkpoint.step for checkpoint in list_checkpoints_in([run.checkpoints])] == [10]


def test_preflight_reads_the_code_that_the_task_runs(run: RunDir, tmp_path: Path) -> None:
    source, copy = tmp_path / "source", run.path / "code" / "1f"
    for directory in (source, copy):
        directory.mkdir(parents=True)
    (copy / "train.sh").touch()
    more = f"[setup]\nfreeze = 'copy'\ndirectory = '{source}'\n"
    config = TRAIN.replace("['true']", "['bash', 'train.sh']") + more
    run.body.write_text(f"cd -- {copy}\n")
    app, files = build(run.path.parents[1] / "site.toml"), Files(config=config, trainer="", body="")
    assert rollback_plan._run_preflight(app, run, files, (), print) == ()
    (copy / "train.sh").unlink()
    with pytest.raises(ConfigError, match=r"train\.sh"):
        rollback_plan._run_preflight(app, run, files, (), print)


def test_nothing_moves_without_the_chosen_checkpoint(run: RunDir) -> None:
    plan = make_plan(run, 10)
    shutil.rmtree(plan.chosen.path)
    with pytest.raises(RunDirError, match="step-0000010 is gone since the rollback began"):
        rollback._move_newer(run, plan.chosen, plan.record, plan)
    assert [checkpoint.step for checkpoint in list_checkpoints_in([run.checkpoints])] == [200, 20]


def test_shell_offers_the_steps_of_checkpoints(run: RunDir) -> None:
    site = run.path.parents[1] / "site.toml"
    assert complete(f"opsctl rollback {run.name} --to 2", site) == ["200", "20"]
    assert complete("opsctl rollback none --to 2", site) == []


def test_shell_offers_steps_of_unknown_layouts(run: RunDir) -> None:
    save_unknown_layout(run, 30)
    assert complete(f"opsctl rollback {run.name} --to 3", run.path.parents[1] / "site.toml") == ["30"]


def test_missing_step_is_refused_with_its_neighbours(run: RunDir) -> None:
    for step in range(30, 130, 10):
        save_unknown_layout(run, step)
    found = list_checkpoints_in([run.checkpoints])
    with pytest.raises(InputError, match=r"no checkpoint of step 75; .* \.\.\. 50, 60, 70, 80, 90, 100 \.\.\.$"):
        _verify_step(run, found, 75, lambda _: None)
    with pytest.raises(InputError, match=r"\.\.\. 80, 90, 100, 110, 120, 200$"):
        _verify_step(run, found, 999, lambda _: None)
    with pytest.raises(InputError, match=r"steps 10, 20, 30, 40, 50, 60 \.\.\.$"):
        _verify_step(run, found, 0, lambda _: None)


@pytest.mark.parametrize("words", [["--skip-samples", "9-1"], ["--lr-scale", "0"], ["--to", "-1"]])
def test_wrong_options_are_refused(run: RunDir, words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        cli.main(["rollback", run.name, *words], standalone_mode=False)


def test_only_one_rollback_of_a_train_runs(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "BUSY_WAIT_S", 0.1)
    app, busy = build(run.path.parents[1] / "site.toml"), r"t: process \d+ on \S+ rolls the train back"
    with rollback.hold_rollback(app, run), pytest.raises(LeaseBusy, match=busy):
        rollback.roll_back(app, make_plan(run, 10), timedelta(0), show=lambda _: None)
    write_record(run, replace(make_plan(run, 10).record, phase=RollbackPhase.MOVED))
    with pytest.raises(LeaseBusy, match="another process has just rolled the train back"):
        rollback.roll_back(app, make_plan(run, 10), timedelta(0), show=lambda _: None)


def test_lease_is_held_while_a_rollback_is_planned(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    app, holders = build(run.path.parents[1] / "site.toml"), list[object]()

    def plan_and_stop(*_: object, **__: object) -> NoReturn:
        holders.append(find_holder(records_dir(run), app.clock))
        raise WaitTimedOut("in time for the test")

    monkeypatch.setattr(rollback, "plan_rollback", plan_and_stop)
    for path in (run.body, run.wrapper):
        path.touch()
    for _ in range(2):
        with pytest.raises(WaitTimedOut):
            cli.main(["rollback", "t", "--to", "10"], standalone_mode=False)
        run.make(records_dir(run))
    assert [holder is not None for holder in holders] == [False, True], "a refused first rollback leaves no directory"


def test_background_rollback_is_shown_after_its_end(run: RunDir) -> None:
    app = build(run.path.parents[1] / "site.toml")
    for path in (run.body, run.wrapper):
        path.touch()
    assert read_rollback_state(run, app.clock) is None
    assert "has started" in start_rollback(app, run, 999, by="ana", reason="noon")
    with pytest.raises(InputError, match="t: a rollback is running"):
        start_rollback(app, run, 10, by="bob", reason="noon")
    until(lambda: (state := read_rollback_state(run, app.clock)) and not state.is_running)
    state = read_rollback_state(run, app.clock)
    assert state
    assert (state.step, state.is_done, state.is_interrupted) == (999, False, False)
    assert "no checkpoint of step 999" in state.output[0]
    shown = describe_rollback(state, "t", app.clock.now())
    assert re.fullmatch(
        r"The rollback to step 999, started \d s ago \(\d\d:\d\d:\d\d UTC\) by ana, has failed.", shown.text
    )


def test_plan_of_a_repeated_rollback_says_so(run: RunDir) -> None:
    plan = make_plan(run, 10)
    done = replace(plan, record=replace(plan.record, phase=RollbackPhase.DONE))
    snapshot = build(run.path.parents[1] / "site.toml").arrays(run).check([])
    expected = ["was already rolled back to step 10; nothing has changed"]
    assert describe_plan(done, snapshot, dry_run=True) == expected


def test_interrupted_rollback_names_its_end(run: RunDir) -> None:
    clock = build(run.path.parents[1] / "site.toml").clock
    for phase, command in (("moved", "opsctl rollback t"), ("cleared", "opsctl rollback t --undo")):
        write_record(run, replace(make_plan(run, 10).record, phase=RollbackPhase(phase)))
        state = read_rollback_state(run, clock)
        assert state
        assert state.is_interrupted
        assert [step.command for step in describe_rollback(state, "t", clock.now()).steps] == [command]
