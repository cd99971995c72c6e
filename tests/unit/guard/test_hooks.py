"""Hooks: which run when, once, bounded, and without any effect of their failures."""

from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.base.errors import OpsctlError
from opsctl.guard.attempt_record import find_newest_checkpoint
from opsctl.guard.finalize import finalize
from opsctl.guard.hooks import CheckpointHook, TrainHooks
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.monitor.reconcile import reconcile
from opsctl.state.events import HookStarted
from opsctl.state.journal import Journal
from opsctl.trainer.contract import TrainerStop
from tests.support.cases import read_cases
from tests.support.finalized_trains import QueuedTrain


def set_hooks(train: QueuedTrain, **hooks: str | float) -> TrainHooks:
    """Write the [hooks] table. The journal's clock is real: the lease of a fake clock would never grow stale."""
    lines = [f"{key} = {value!r}" for key, value in hooks.items()]
    text = train.run.config.read_text().partition("[hooks]")[0]
    train.run.config.write_text("\n".join([text, "[hooks]", *lines]) + "\n")
    return TrainHooks(run=train.run, journal=Journal(train.run, SystemClock()), runner=SystemRunner())


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(*read_cases(__file__, "hooks_of_an_end_run_once", reason=TrainerStop))
def test_hooks_of_an_end_run_once(train: QueuedTrain, tmp_path: Path, reason: TrainerStop, names: list[str]) -> None:
    out = tmp_path / "out"
    commands = {
        key: f'echo {word} "$TRAIN_NAME" "$TRAIN_ATTEMPT" "$TRAIN_OUTCOME" >>{out}'
        for key, word in (("on_attempt_end", "end"), ("on_held", "held"), ("on_finished", "finished"))
    }
    hooks = set_hooks(train, **commands)
    attempt = train.start_attempt()
    train.stop_trainer(attempt, reason)
    ended = finalize(train.arrays, train.rules, attempt)
    hooks.after_attempts([ended])
    hooks.after_attempts([ended])
    assert read_lines(out) == [f"{name} gpt 12_1.0 {ended.outcome.value}" for name in names]
    assert [line[24:] for line in read_lines(train.run.logs / "hooks.log")] == [
        f"on_{'attempt_end' if name == 'end' else name} of 12_1.0: exit code 0" for name in names
    ]


def test_reconcile_runs_hooks(train: QueuedTrain, tmp_path: Path) -> None:
    set_hooks(train, on_attempt_end=f"touch {tmp_path}/ran")
    train.end_body(train.start_attempt(), 1)
    reconcile(train.arrays, runner=SystemRunner())
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\udcff", "x" * 200_000, "a\nb"], ids=range(5))
def test_hook_runs_whatever_the_log_says_and_prints_no_secret(train: QueuedTrain, tmp_path: Path, text: str) -> None:
    token = "hf_" + "A1b2C3d4" * 4 + "Zz"
    hooks = set_hooks(train, on_attempt_end=f"touch {tmp_path}/ran; echo {token}")
    attempt = train.start_attempt()
    train.end_body(attempt, 1)
    hooks.after_attempts([replace(finalize(train.arrays, train.rules, attempt), why=text)])
    assert (tmp_path / "ran").exists()
    assert token not in (train.run.logs / "hooks.log").read_text()


def test_failing_and_slow_hooks_are_logged(train: QueuedTrain) -> None:
    hooks = set_hooks(train, on_attempt_end="echo no; exit 3", on_finished="sleep 60", timeout_seconds=0.3)
    attempt = train.start_attempt()
    train.stop_trainer(attempt, TrainerStop.FINISHED)
    hooks.after_attempts([finalize(train.arrays, train.rules, attempt)])
    text = (train.run.logs / "hooks.log").read_text()
    assert "on_attempt_end of 12_1.0: exit code 3\n  no\n" in text
    assert "on_finished of 12_1.0: bash did not answer within 0.3 s" in text


def test_broken_settings_stop_nothing(train: QueuedTrain) -> None:
    hooks = set_hooks(train, on_attempt_end="true")
    train.run.config.write_text("[hooks]\non_attempt_end = 3\n")
    train.stop_trainer(attempt := train.start_attempt(), TrainerStop.DEADLINE)
    hooks.after_attempts([finalize(train.arrays, train.rules, attempt)])
    with pytest.raises(OpsctlError):
        hooks.settings  # noqa: B018 (a property that raises)
    assert [event for event in train.arrays.journal.events() if isinstance(event, HookStarted)] == []


def test_checkpoint_hook_gets_each_new_checkpoint(train: QueuedTrain, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hooks = set_hooks(train, on_checkpoint=f'echo "$TRAIN_CHECKPOINT" "$TRAIN_STEP" >>{out}')
    hook = CheckpointHook(hooks, "12_1.0", train.clock)
    hook.finish()
    (train.run.checkpoints / "step500").mkdir()
    hook.finish()
    assert read_lines(out) == []
    (train.run.checkpoints / "step500" / "weights").write_text("1")
    hook.finish()
    hook.finish()
    assert read_lines(out) == [f"{train.run.checkpoints}/step500 500"]


def test_checkpoint_with_a_step_is_newer_than_a_file_without(train: QueuedTrain, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hooks = set_hooks(train, on_checkpoint=f'echo "$TRAIN_STEP" >>{out}')
    (train.run.checkpoints / "pretrained.pt").write_bytes(b"weights")
    hook = CheckpointHook(hooks, "12_1.0", train.clock, newest=find_newest_checkpoint(train.run))
    hook.finish()
    (train.run.checkpoints / "step500.pt").write_bytes(b"weights")
    hook.finish()
    assert read_lines(out) == ["500"]


def test_checkpoint_that_grows_waits(train: QueuedTrain, tmp_path: Path) -> None:
    hooks = set_hooks(train, on_checkpoint=f"touch {tmp_path}/ran")
    hook = CheckpointHook(hooks, "12_1.0", train.clock)
    checkpoint = train.run.checkpoints / "step500"
    checkpoint.mkdir()
    for text in ("1", "2"):
        (checkpoint / f"weights-{text}").write_text(text)
        train.clock.sleep(60)
        hook.look()
        hook.join()
    train.clock.sleep(60)
    assert not (tmp_path / "ran").exists()
    hook.look()
    hook.finish()
    assert (tmp_path / "ran").exists()
