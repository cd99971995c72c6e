"""What is asked for, and how all ranks come to the same answer."""

import math
import os
import time
from itertools import zip_longest

import pytest

from opsctl.trainer.contract import Env, TrainerStop
from opsctl.trainer.run_state import RunState
from opsctl.trainer.stop_hooks import Decision, Hooks


class Alone:
    """A group of one rank, and what the others would say."""

    def __init__(self, *others):
        self.others = others

    def highest(self, values):
        return [max(floats) for floats in zip_longest(values, *self.others, fillvalue=0.0)]


@pytest.fixture
def environ(tmp_path):
    names = (Env.KILL_SWITCH, Env.PAUSE_SWITCH, Env.SAVE_SWITCH, Env.STOP_REQUEST, Env.DEADLINE)
    return {name: str(tmp_path / name) for name in names}


def hooks(environ, **changes):
    return Hooks(environ, **({"polls": True, "margin_s": 5.0} | changes))


def test_nobody_asks_for_anything(environ):
    assert hooks({}).agree(Alone(), RunState()) == Decision()
    assert hooks(environ).agree(Alone(), RunState(loss=1.0, grad_norm=0.5)) == Decision()


@pytest.mark.parametrize(
    ("name", "decision"),
    [
        (Env.KILL_SWITCH, Decision(stop=TrainerStop.KILL)),
        (Env.PAUSE_SWITCH, Decision(stop=TrainerStop.PAUSE)),
        (Env.STOP_REQUEST, Decision(stop=TrainerStop.STOP_REQUEST)),
        (Env.SAVE_SWITCH, Decision(save=True)),
    ],
)
def test_a_file_is_enough(environ, tmp_path, name, decision):
    (tmp_path / name).touch()
    assert hooks(environ).agree(Alone(), RunState()) == decision
    assert hooks(environ, polls=False).agree(Alone(), RunState()) == Decision()


def test_the_weightiest_reason_wins(environ, tmp_path):
    for name in environ:
        (tmp_path / name).write_text("0")
    stop_hooks = hooks(environ)
    assert stop_hooks.agree(Alone(), RunState()) == Decision(stop=TrainerStop.KILL, save=True)
    assert stop_hooks.detail == f"{tmp_path / Env.KILL_SWITCH} exists"


def test_what_another_rank_saw_counts():
    other = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert hooks({}).agree(Alone(other), RunState()) == Decision(stop=TrainerStop.STOP_REQUEST)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf), (1.0, math.nan)])
def test_what_is_not_a_number_stops(loss, norm):
    assert hooks({}).agree(Alone(), RunState(loss=loss, grad_norm=norm)).stop is TrainerStop.NAN


def test_deadline_leaves_two_steps_and_two_saves(environ, tmp_path):
    stop_hooks, state = hooks(environ), RunState(slowest_step_s=10.0, save_s=20.0)
    for left, stop in ((70.0, None), (60.0, TrainerStop.DEADLINE)):  # 5 + 2 x (10 + 20) = 65
        (tmp_path / Env.DEADLINE).write_text(f"{time.time() + left}\n")
        assert stop_hooks.agree(Alone(), state).stop is stop
    assert "stopping needs up to 65 s" in stop_hooks.detail


def test_a_deadline_that_cannot_be_read_is_unknown(environ, tmp_path):
    (tmp_path / Env.DEADLINE).write_text("soon")
    assert hooks(environ).agree(Alone(), RunState()) == Decision()


def test_unreadable_switch_requests_nothing(capsys):
    state, stop_hooks = RunState(), hooks({Env.KILL_SWITCH: "/tmp/" + "x" * 300})
    for _ in range(2):
        assert stop_hooks.agree(Alone(), state) == Decision()
    (note,) = state.notes
    assert note.endswith("cannot be read: File name too long")
    assert capsys.readouterr().out == note + "\n"


def test_a_save_switch_is_obeyed_once(environ, tmp_path):
    switch, stop_hooks = tmp_path / Env.SAVE_SWITCH, hooks(environ)
    switch.touch()
    assert stop_hooks.agree(Alone(), RunState()).save
    stop_hooks.start_save_request()
    stop_hooks.finish_save_request(saved=True)
    assert not switch.exists()


def test_failed_save_is_not_retried_every_step(environ, tmp_path):
    switch, stop_hooks = tmp_path / Env.SAVE_SWITCH, hooks(environ)
    switch.touch()
    assert stop_hooks.agree(Alone(), RunState()).save
    stop_hooks.start_save_request()
    stop_hooks.finish_save_request(saved=False)
    assert switch.exists()
    assert not stop_hooks.agree(Alone(), RunState()).save
    switch.unlink()
    switch.write_text("again")
    os.utime(switch, (1, 1))  # not within one of the file system's moments
    assert stop_hooks.agree(Alone(), RunState()).save
