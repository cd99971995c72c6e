"""Stacks of all threads on request: to stderr on SIGUSR2, to a file when the driver touches the request file."""

from __future__ import annotations

import faulthandler
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from opsctl.trainer.contract import Env
from opsctl.trainer.rank_process import RankProcess

_POLL_S = 2.0


def answer_requests(environ: Mapping[str, str], process: RankProcess) -> None:
    """Dump stacks on SIGUSR2, even in a hung interpreter; and on a touched file, by a thread of the interpreter."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    request, run_dir = environ.get(Env.STACKS_REQUEST), environ.get(Env.RUN_DIR)
    if request and run_dir:
        target = Path(run_dir, "attempts", environ.get(Env.ATTEMPT, ""), "stacks", f"{process.node}-{process.rank}.txt")
        threading.Thread(target=_watch, args=(Path(request), target), name="stacks", daemon=True).start()


def _watch(request: Path, target: Path) -> None:
    answered = _mtime(request)
    while True:
        time.sleep(_POLL_S)
        number = _mtime(request)
        if number != answered and number is not None:
            _dump(target)
        answered = number


def _dump(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a") as file:
            file.write(f"at {time.time():.3f}\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
    except OSError:
        return  # a full disk must not end a rank for the sake of stacks


def _mtime(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
