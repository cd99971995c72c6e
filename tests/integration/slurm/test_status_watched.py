"""`opsctl status --watch` on a real terminal of 80 columns and 16 lines, and in a pipe."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest

from opsctl.sandbox.cluster import Sandbox
from opsctl.state.switches import Switch, arm
from tests.support.trains import Trains, trains_on

LINE = "iteration {0}/ 1000 | elapsed time per iteration (s): 2.0 | lm loss: {1} | TFLOPs: 150.0 |\n"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def trains(slurm: Sandbox) -> Iterator[Trains]:
    with trains_on(slurm) as trains:
        trains.opsctl("launch", trains.toml(tasks=3))
        trains.run().main_log.write_text("".join(LINE.format(n, 10 - n / 100) for n in range(1, 300)))
        yield trains


def watch_command(trains: Trains, *words: str) -> list[str]:
    return [
        sys.executable,
        "-P",
        "-m",
        "opsctl",
        "--site",
        str(trains.site),
        "status",
        "--watch",
        "--every",
        "1s",
        *words,
    ]


def read_until(handle: int, holds: str, times: int, seconds: float = 250) -> str:
    text, deadline = "", time.monotonic() + seconds
    while text.count(holds) < times:
        assert time.monotonic() < deadline, text
        if select.select([handle], [], [], 0.1)[0]:
            text += os.read(handle, 1 << 16).decode()
    return text


def test_terminal_shows_a_changing_page_until_ctrl_c(trains: Trains) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 16, 80, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in {"LINES", "COLUMNS"}}  # the terminal's own
    env["TERM"] = "xterm"  # of a dumb terminal the height is not read
    with subprocess.Popen(watch_command(trains), stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        text = read_until(ours, "again every 1 s; Ctrl-C ends it", 1)
        with trains.run().main_log.open("a") as log:
            log.write(LINE.format(300, 7))
        text += read_until(ours, "step 300 of 1000", 1)
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 80, 0, 0))
        read_until(ours, "more line", 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=250) == 130
    os.close(ours)
    lines = ESCAPE.sub("", text).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if re.search(r"loss +7\.01  [▁-█↑↓]{32} since step 60$", line.rstrip())]
    assert "held" in text
    assert max(int(rows) for rows in re.findall(r"\x1b\[(\d+)A", text) or ["0"]) < 16
    assert "…" not in text


def test_pipe_gets_a_json_line_for_every_refresh(trains: Trains) -> None:
    with subprocess.Popen(watch_command(trains, "--json"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pages = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=250) == 130
    assert [page[0]["progress"]["step"] for page in pages] == [299, 299]
    assert len(pages[0][0]["progress"]["losses"]) == 240


def test_read_only_status_carries_out_no_switch(trains: Trains) -> None:
    arm(trains.run(), Switch.KILL, why="enough")
    before = trains.arrays()
    trains.opsctl("status", "--read-only")
    assert trains.arrays() == before
    trains.opsctl("status")
    assert trains.arrays() == set()
