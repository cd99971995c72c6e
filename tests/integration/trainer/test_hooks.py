"""Requests to save or stop, and the agreement of all ranks on them."""

import math
import os
import time
from itertools import zip_longest

import pytest

from opsctl.integrations.opsctl_contract import Contract
from opsctl.trainer.contract import Env, TrainerStop
from opsctl.trainer.loop import Decision, Hooks
from opsctl.trainer.run_state import RunState


class OneRank:
    """A group of one rank, with the values that other ranks would send."""

    def __init__(self, *others):
        self.others = others

    def highest(self, values):
        return [max(column) for column in zip_longest(values, *self.others, fillvalue=0.0)]


@pytest.fixture
def environ(tmp_path):
    names = (Env.KILL_SWITCH, Env.PAUSE_SWITCH, Env.SAVE_SWITCH, Env.STOP_REQUEST, Env.DEADLINE)
    return {name: str(tmp_path / name) for name in names}


def make_hooks(environ, **changes):
    return Hooks(environ, **({"polls": True, "margin_s": 5.0} | changes))


def test_no_request_means_no_decision(environ):
    assert make_hooks({}).agree(OneRank(), RunState()) == Decision()
    assert make_hooks(environ).agree(OneRank(), RunState(loss=1.0, grad_norm=0.5)) == Decision()


@pytest.mark.parametrize(
    ("name", "decision"),
    [
        (Env.KILL_SWITCH, Decision(stop=TrainerStop.KILL)),
        (Env.PAUSE_SWITCH, Decision(stop=TrainerStop.PAUSE)),
        (Env.STOP_REQUEST, Decision(stop=TrainerStop.STOP_REQUEST)),
        (Env.SAVE_SWITCH, Decision(save=True)),
    ],
)
def test_file_is_a_request(environ, tmp_path, name, decision):
    (tmp_path / name).touch()
    assert make_hooks(environ).agree(OneRank(), RunState()) == decision
    assert make_hooks(environ, polls=False).agree(OneRank(), RunState()) == Decision()


def test_kill_wins_over_the_other_requests(environ, tmp_path):
    for name in environ:
        (tmp_path / name).write_text("0")
    hooks = make_hooks(environ)
    assert hooks.agree(OneRank(), RunState()) == Decision(stop=TrainerStop.KILL, save=True)
    assert hooks.detail == f"{tmp_path / Env.KILL_SWITCH} exists"


def test_request_seen_by_another_rank_counts():
    other = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert make_hooks({}).agree(OneRank(other), RunState()) == Decision(stop=TrainerStop.STOP_REQUEST)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf), (1.0, math.nan)])
def test_loss_or_norm_that_is_not_finite_stops(loss, norm):
    assert make_hooks({}).agree(OneRank(), RunState(loss=loss, grad_norm=norm)).stop is TrainerStop.NAN


def test_deadline_leaves_two_steps_and_two_saves(environ, tmp_path):
    hooks, state = make_hooks(environ), RunState(slowest_step_s=10.0, save_s=20.0)
    for left, stop in ((70.0, None), (60.0, TrainerStop.DEADLINE)):  # 5 + 2 x (10 + 20) = 65
        (tmp_path / Env.DEADLINE).write_text(f"{time.time() + left}\n")
        assert hooks.agree(OneRank(), state).stop is stop
    assert "stopping needs up to 65 s" in hooks.detail


def test_unreadable_deadline_is_unknown(environ, tmp_path):
    (tmp_path / Env.DEADLINE).write_text("soon")
    assert make_hooks(environ).agree(OneRank(), RunState()) == Decision()


def test_unreadable_switch_requests_nothing(capsys):
    state, hooks = RunState(), make_hooks({Env.KILL_SWITCH: "/tmp/" + "x" * 300})
    for _ in range(2):
        assert hooks.agree(OneRank(), state) == Decision()
    (note,) = state.notes
    assert note.endswith("cannot be read: File name too long")
    assert capsys.readouterr().out == note + "\n"


@pytest.mark.parametrize("kind", ["file", "broken link", "directory", "behind a file"])
@pytest.mark.parametrize("name", [Env.KILL_SWITCH, Env.PAUSE_SWITCH, Env.STOP_REQUEST, Env.SAVE_SWITCH, Env.DEADLINE])
def test_foreign_trainers_get_the_same_request(environ, tmp_path, name, kind):
    """Until both trainers read the files with one class, a broken link stopped only the embedded trainer."""
    path = tmp_path / name
    if kind == "file":
        path.write_text(f"{time.time() + 10}\n")
    elif kind == "broken link":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "directory":
        path.mkdir()
    else:
        (tmp_path / "file").touch()
        environ[name] = str(tmp_path / "file" / "switch")
    decision = make_hooks(environ, margin_s=20).agree(OneRank(), RunState())
    contract = Contract(environ, poll_s=0)
    contract.begin(0)
    request = contract.after_step(1)
    assert (contract.stop_reason or None, request.save) == (decision.stop, decision.save or decision.stop is not None)


def test_save_switch_is_obeyed_once(environ, tmp_path):
    switch, hooks = tmp_path / Env.SAVE_SWITCH, make_hooks(environ)
    switch.touch()
    assert hooks.agree(OneRank(), RunState()).save
    hooks.start_save_request()
    hooks.finish_save_request(saved=True)
    assert not switch.exists()


def test_failed_save_is_not_retried_every_step(environ, tmp_path):
    switch, hooks = tmp_path / Env.SAVE_SWITCH, make_hooks(environ)
    switch.touch()
    assert hooks.agree(OneRank(), RunState()).save
    hooks.start_save_request()
    hooks.finish_save_request(saved=False)
    assert switch.exists()
    assert not hooks.agree(OneRank(), RunState()).save
    switch.unlink()
    switch.write_text("again")
    os.utime(switch, (1, 1))  # a different time stamp even on a coarse file system
    assert hooks.agree(OneRank(), RunState()).save
