"""A trace of calls into chosen packages, one line per call in a file per rank, to find the last call before a hang."""

import contextlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from opsctl.trainer.contract import Env
from opsctl.trainer.errors import Refused
from opsctl.trainer.rank_process import RankProcess


def trace_file(environ: Mapping[str, str], process: RankProcess) -> Path:
    """Return the trace file of this rank: in the attempt's directory, else in the working directory."""
    run_dir = environ.get(Env.RUN_DIR)
    directory = Path(run_dir, "attempts", environ.get(Env.ATTEMPT, "")) if run_dir else Path()
    return directory / "trace" / f"{process.node}-{process.rank}.log"


def trace(packages: Sequence[str], path: Path) -> None:
    """Log calls into `packages` from every thread from now on. Raises Refused if `path` cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", buffering=1)  # line-buffered: unwritten lines are lost after a hang
    except OSError as error:
        raise Refused(f"trace {path} cannot be written: {error}") from error
    profile = _Profile(tuple(packages), file)
    threading.setprofile(profile)
    sys.setprofile(profile)


class _Profile:
    """The profile function, which the interpreter calls at every call and return."""

    def __init__(self, packages: tuple[str, ...], file: TextIO) -> None:
        self._packages, self._file = packages, file
        self._depths = threading.local()
        self._chosen: dict[str, bool] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        module = frame.f_globals.get("__name__", "")
        chosen = self._chosen.get(module)
        if chosen is None:
            chosen = self._chosen[module] = any(f"{module}.".startswith(f"{name}.") for name in self._packages)
        if chosen and module != __name__:
            self._write(frame, event, module)

    def _write(self, frame: FrameType, event: str, module: str) -> None:
        depth = getattr(self._depths, "now", 0)
        self._depths.now = depth = depth + 1 if event == "call" else max(0, depth - 1)
        if event == "call":
            where = f"{frame.f_code.co_filename}:{frame.f_code.co_firstlineno}"
            name = f"{module}.{frame.f_code.co_qualname}"
            with contextlib.suppress(OSError):  # a full disk must not affect the traced program
                self._file.write(f"{time.time():.6f} {threading.get_native_id()} {'  ' * (depth - 1)}{name} {where}\n")
