"""`opsctl top` in a terminal of 80 x 24, on trains in a real Slurm."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.cli.top.trains_feed import TrainsFeed
from opsctl.host.system import SystemClock
from opsctl.sandbox.cluster import Sandbox
from opsctl.state.events import Held
from opsctl.state.switches import Switch, arm
from tests.support.tmux import terminal
from tests.support.trains import Trains, trains_on, until
from tests.support.watched_trains import app_of

pytest.importorskip("textual")

LINE = "[n1:0]: iteration {0}/ 1000 | elapsed time per iteration (s): 2.0 | lm loss: {1} | TFLOPs: 150.0 |\n"

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)[;m]")


@pytest.fixture
def trains(slurm: Sandbox) -> Iterator[Trains]:
    with trains_on(slurm) as trains:
        for name in ("alpha", "beta"):
            trains.opsctl("launch", trains.toml(name, tasks=3))
        log = "".join(LINE.format(n, 10 - n / 100) for n in range(1, 300))
        trains.run("beta").main_log.write_text(f"{log}RuntimeError: the one line\n{log}")
        yield trains


def test_trains_are_watched_and_held(trains: Trains, slurm: Sandbox, tmp_path: Path) -> None:
    argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(trains.site), "top", "--every", "2s"]
    env = {**slurm.env(), "NO_COLOR": "1"}
    with terminal(tmp_path, argv, env) as pane:
        screen = pane.wait_for("2 trains", "alpha", "beta", "F1 Keys")
        assert max(map(len, screen.splitlines())) <= 80
        assert COLOUR.search(pane.screen(escapes=True)) is None
        pane.press("j", "Enter")
        pane.wait_for("beta  held", "1 card", "waits", "29.9 %")
        pane.press("2")
        pane.wait_for("iteration 299/ 1000")
        pane.press("/")
        pane.wait_for("Search for:")
        pane.type("runtimeerror")
        pane.press("Enter")
        pane.wait_for("1 of 1: RuntimeError: the one line")
        pane.press("3")
        pane.wait_for("no attempt has ended")
        pane.press("h")
        pane.wait_for("Hold the queued tasks of beta?")
        pane.type("the loss is bad")
        pane.press("Enter")
        pane.wait_for("held array")
        assert Held in trains.kinds("beta")
        pane.press("Escape")
        pane.wait_for("2 trains")
        trains.opsctl("launch", trains.toml("gamma", tasks=3))
        pane.wait_for("3 trains", "gamma")
        pane.press("q")
        pane.wait_for("ended with 0")
    assert until(lambda: Held not in trains.kinds("alpha"))


def test_refresh_asks_slurm_once_and_acts_on_nothing(trains: Trains, slurm: Sandbox) -> None:
    arm(trains.run("alpha"), Switch.KILL, why="enough")
    app = app_of(trains.root, slurm.env(), SystemClock())
    page = TrainsFeed(app).read()
    assert [status.train for status in page.statuses] == ["alpha", "beta"]
    assert app.counting.programs == ["squeue"]
    assert trains.arrays("alpha")


def test_dumb_terminal_is_refused_with_advice(trains: Trains, slurm: Sandbox, tmp_path: Path) -> None:
    argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(trains.site), "top"]
    with terminal(tmp_path, argv, {**slurm.env(), "TERM": "dumb"}) as pane:
        assert "cannot move its cursor (TERM=dumb)" in pane.wait_for("ended with 2")
