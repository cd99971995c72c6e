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
    asked = hooks(environ)
    assert asked.agree(Alone(), RunState()) == Decision(stop=TrainerStop.KILL, save=True)
    assert asked.detail == f"{tmp_path / Env.KILL_SWITCH} exists"


def test_what_another_rank_saw_counts():
    other = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert hooks({}).agree(Alone(other), RunState()) == Decision(stop=TrainerStop.STOP_REQUEST)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf), (1.0, math.nan)])
def test_what_is_not_a_number_stops(loss, norm):
    assert hooks({}).agree(Alone(), RunState(loss=loss, grad_norm=norm)).stop is TrainerStop.NAN


def test_the_deadline_leaves_room_for_two_steps_and_two_saves(environ, tmp_path):
    asked, state = hooks(environ), RunState(slowest_step_s=10.0, save_s=20.0)
    for left, stop in ((70.0, None), (60.0, TrainerStop.DEADLINE)):  # 5 + 2 x (10 + 20) = 65
        (tmp_path / Env.DEADLINE).write_text(f"{time.time() + left}\n")
        assert asked.agree(Alone(), state).stop is stop
    assert "stopping needs up to 65 s" in asked.detail


def test_a_deadline_that_cannot_be_read_is_unknown(environ, tmp_path):
    (tmp_path / Env.DEADLINE).write_text("soon")
    assert hooks(environ).agree(Alone(), RunState()) == Decision()


def test_a_switch_that_cannot_be_looked_at_asks_for_nothing_and_is_noted_once(capsys):
    state, asked = RunState(), hooks({Env.KILL_SWITCH: "/tmp/" + "x" * 300})
    for _ in range(2):
        assert asked.agree(Alone(), state) == Decision()
    (note,) = state.notes
    assert note.endswith("cannot be read: File name too long")
    assert capsys.readouterr().out == note + "\n"


def test_a_save_switch_is_obeyed_once(environ, tmp_path):
    switch, asked = tmp_path / Env.SAVE_SWITCH, hooks(environ)
    switch.touch()
    assert asked.agree(Alone(), RunState()).save
    asked.start_save_request()
    asked.finish_save_request(saved=True)
    assert not switch.exists()


def test_a_save_that_failed_is_not_tried_at_every_step(environ, tmp_path):
    switch, asked = tmp_path / Env.SAVE_SWITCH, hooks(environ)
    switch.touch()
    assert asked.agree(Alone(), RunState()).save
    asked.start_save_request()
    asked.finish_save_request(saved=False)
    assert switch.exists()
    assert not asked.agree(Alone(), RunState()).save
    switch.unlink()
    switch.write_text("again")
    os.utime(switch, (1, 1))  # not within one of the file system's moments
    assert asked.agree(Alone(), RunState()).save
