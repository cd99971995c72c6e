"""A terminal of tmux, with its own server: keys go in, the screen comes out."""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest


class Terminal:
    """One pane."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    def tmux(self, *words: str) -> str:
        argv = ["tmux", "-S", str(self.socket), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=250).stdout

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def screen(self, *, escapes: bool = False) -> str:
        return self.tmux("capture-pane", "-p", *(["-e"] if escapes else []))

    def wait_for(self, *texts: str, seconds: float = 250) -> str:
        """Wait until the screen shows all texts, and return the screen."""
        deadline = time.monotonic() + seconds
        while not all(text in (screen := self.screen()) for text in texts):
            assert time.monotonic() < deadline, f"no {texts} on:\n{screen}"
            time.sleep(0.1)
        return screen


@contextmanager
def terminal(
    place: Path, argv: Sequence[str], env: dict[str, str], *, width: int = 80, height: int = 24
) -> Iterator[Terminal]:
    """Run a program in a terminal; its exit code is the last line of the screen."""
    if not shutil.which("tmux"):
        pytest.skip("no tmux here: apt-get install tmux")
    settings = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    program = f"env {' '.join(settings)} {shlex.join(argv)}; echo ended with $?; exec sleep 1000"
    pane = Terminal(place / "tmux")
    size = ["-x", str(width), "-y", str(height)]
    server = {**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm"}
    start = ["tmux", "-S", str(pane.socket), "-f", "/dev/null", "new-session", "-d", *size, program]
    subprocess.run(start, check=True, timeout=250, env=server)
    try:
        yield pane
    finally:
        subprocess.run(["tmux", "-S", str(pane.socket), "kill-server"], check=False, timeout=250)
