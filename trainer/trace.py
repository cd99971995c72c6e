"""Every call into chosen packages, one line each, in a file of this rank: what it did last before it hung."""

from __future__ import annotations

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
    """Where this rank's calls go: into the attempt's directory, or where it was started."""
    run_dir = environ.get(Env.RUN_DIR)
    directory = Path(run_dir, "attempts", environ.get(Env.ATTEMPT, "")) if run_dir else Path()
    return directory / "trace" / f"{process.node}-{process.rank}.log"


def trace(packages: Sequence[str], path: Path) -> None:
    """From here on log each call into `packages`, from every thread. Raises Refused where `path` cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", buffering=1)  # line by line: what is not written is not known after a hang
    except OSError as error:
        raise Refused(f"trace {path} cannot be written: {error}") from error
    profile = _Profile(tuple(packages), file)
    threading.setprofile(profile)
    sys.setprofile(profile)


class _Profile:
    """What the interpreter calls at each call and return."""

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
            with contextlib.suppress(OSError):  # a full disk: what is traced must not notice
                self._file.write(f"{time.time():.6f} {threading.get_native_id()} {'  ' * (depth - 1)}{name} {where}\n")
