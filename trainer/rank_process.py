"""This process: its rank, its end when its parent ends, the stacks of its threads on request, and a trace of calls."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from opsctl.trainer.contract import Env
from opsctl.trainer.errors import Refused

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_ANY_PROCESS = ctypes.c_ulong(-1)
_POLL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcess:
    rank: int
    world_size: int
    local_rank: int
    node: str

    @property
    def name(self) -> str:
        """`<node>-<local rank>`, also the name of the heartbeat."""
        return f"{self.node}-{self.local_rank}"

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.world_size - 1


def from_environment(environ: Mapping[str, str]) -> RankProcess:
    """Return this process's rank by the variables of torchrun, else of srun; without both, the only rank."""
    node = environ.get(Env.NODE) or environ.get("SLURMD_NODENAME") or os.uname().nodename
    return RankProcess(
        rank=number(environ, "RANK", "SLURM_PROCID", default=0),
        world_size=number(environ, "WORLD_SIZE", "SLURM_NTASKS", default=1),
        local_rank=number(environ, "LOCAL_RANK", "SLURM_LOCALID", default=0),
        node=node,
    )


def number(environ: Mapping[str, str], *names: str, default: int) -> int:
    """Return the value of the first of `names` in the environment. Raises Refused if the value is no number."""
    for name in names:
        if name in environ:
            try:
                return int(environ[name])
            except ValueError:
                raise Refused(f"{name} is {environ[name]!r} in the environment, not a number") from None
    return default


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, so that no rank goes on training unsupervised.

    Linux only. The parent is the thread that started this process: a launcher must start ranks from a lasting thread.
    """
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call of prctl
        os.kill(os.getpid(), signal.SIGKILL)
    libc.prctl(_PR_SET_PTRACER, _ANY_PROCESS)  # lets py-spy attach without root


def answer_stack_requests(environ: Mapping[str, str], process: RankProcess) -> None:
    """Dump stacks to stderr on SIGUSR2, even in a hung interpreter; by a thread to a file when the driver asks."""
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


def trace(packages: Sequence[str], environ: Mapping[str, str], process: RankProcess) -> None:
    """Log calls into `packages` from every thread from now on, in the attempt's directory, else the working directory.

    Raises Refused if the file cannot be written.
    """
    run_dir = environ.get(Env.RUN_DIR)
    directory = Path(run_dir, "attempts", environ.get(Env.ATTEMPT, "")) if run_dir else Path()
    path = directory / "trace" / f"{process.node}-{process.rank}.log"
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
