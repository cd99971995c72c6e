"""Runs opsctl again and again, and kills it at the k-th of its effects: `python cut.py`, an order a line on stdin.

An effect is whatever changes something outside of the process, as the interpreter's audit events tell it: a file opened
for writing, made, linked, renamed, removed; a program started; a signal sent; a connection. Between two of them nothing
can be lost that SIGKILL could lose. `before` dies as it would begin; `after` at the first line of ours once it is done:
with the new file still empty, with the program at work. Everything is imported beforehand, each run is a fork.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[3]
OURS = tuple(str(ROOT / name) + os.sep for name in ("opsctl",))
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FILES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.truncate",
    "os.utime",
}
OTHERS = {"os.kill", "os.killpg", "os.exec", "os.fork", "socket.connect", "socket.bind"}
ASKS = {"squeue", "sinfo", "sacct", "sacctmgr", "sdiag", "sprio"}
"""Programs that change nothing."""
LIMIT_S = 300.0


class Cut:
    """Counts effects, and ends the process at one of them."""

    def __init__(self, at: int, *, after: bool, lines: tuple[str, ...]) -> None:
        self.at, self.after = at, after
        self.lines = tuple(str(ROOT / "opsctl" / line) for line in lines)
        self.effects: list[str] = []
        self.armed = self.over = False

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.over and (what := effect(event, args)):
            self.count(what)

    def count(self, what: str) -> None:
        self.effects.append(what)
        if len(self.effects) == self.at:
            if not self.after:
                self.die()
            self.armed = True

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        self.line(frame, event, None)
        return self.line

    def line(self, frame: FrameType, event: str, _: object) -> Any:
        if self.armed:
            self.die()
        if event == "line" and frame.f_code.co_filename.startswith(self.lines or ("\0",)):
            self.count(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return self.line

    def die(self) -> None:
        self.over = True
        os.kill(os.getpid(), signal.SIGKILL)


def effect(event: str, args: tuple[Any, ...]) -> str:
    """In words; empty for what changes nothing."""
    if event == "open":
        path, _, flags = args
        if not isinstance(path, str | bytes | os.PathLike) or not (flags or 0) & WRITES:
            return ""
        name = os.fsdecode(path)
        return "" if name.startswith(("/dev/", "/proc/")) or "__pycache__" in name else f"open {name}"
    if event == "subprocess.Popen":
        argv = [os.fsdecode(arg) for arg in args[1]]
        only_reads = Path(argv[0]).name in ASKS or (Path(argv[0]).name == "scontrol" and "show" in argv)
        return "" if only_reads or argv[1:] == ["--version"] else f"run {' '.join(argv)[:100]}"
    if event in FILES:
        names = [os.fsdecode(arg) for arg in args if isinstance(arg, str | bytes | os.PathLike)]
        return "" if any("__pycache__" in name for name in names) else f"{event} {' '.join(names)}"
    if event in OTHERS:
        return f"{event} {args[1:] if event.startswith('socket') else args[:2]}"[:100]
    return ""


def run(order: dict[str, Any]) -> None:
    """In the child: become the verb. Does not return."""
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        os.dup2(os.open(path, flags), number)
    os.dup2(1, 2)
    report = os.open(order["told"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = ["opsctl", *order["argv"]]
    from opsctl.cli import main  # noqa: PLC0415 (imported long ago)

    cut, code = Cut(order["at"], after=order["after"], lines=tuple(order["lines"])), 0
    sys.addaudithook(cut.hook)
    threading.settrace(cut.trace)
    sys.settrace(cut.trace)
    try:
        main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001 (a child must not go on as a second server)
        traceback.print_exc()
        code = 99
    sys.settrace(None)
    cut.over = True
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(report, json.dumps(cut.effects).encode())
    os._exit(code)


NOT_IMPORTED = ("opsctl.trainer.", "opsctl.integrations.")
"""Packages that need torch or the library of a trainer."""


def serve() -> None:
    """Carry out orders until stdin ends."""
    importlib.import_module("opsctl.cli")
    for module in pkgutil.walk_packages(importlib.import_module("opsctl").__path__, "opsctl."):
        if not module.name.endswith("__main__") and not module.name.startswith(NOT_IMPORTED):
            importlib.import_module(module.name)
    print("ready", flush=True)  # noqa: T201 (the answer)
    for row in sys.stdin:
        order = json.loads(row)
        if (child := os.fork()) == 0:
            run(order)
        print(json.dumps({"code": waited(child)}), flush=True)  # noqa: T201 (the answer)


def waited(child: int) -> int:
    """As subprocess tells it; a child that takes too long is killed, and told as 124."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


if __name__ == "__main__":
    serve()
