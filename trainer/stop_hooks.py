"""What asks the trainer to save or to stop, and how all ranks come to act on it after the same step."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from opsctl.trainer.contract import Env, TrainerStop, read_time
from opsctl.trainer.heartbeats import note
from opsctl.trainer.memory_usage import MemoryUsage
from opsctl.trainer.run_state import RunState


class Flag(IntEnum):
    """Places in the vector that all ranks agree on; of several that are up, the first is the reason."""

    NAN = 0
    KILL = 1
    PAUSE = 2
    STOP_REQUEST = 3
    DEADLINE = 4
    SAVE = 5
    SPIKE = 6


REASONS = {
    Flag.NAN: TrainerStop.NAN,
    Flag.KILL: TrainerStop.KILL,
    Flag.PAUSE: TrainerStop.PAUSE,
    Flag.STOP_REQUEST: TrainerStop.STOP_REQUEST,
    Flag.DEADLINE: TrainerStop.DEADLINE,
}
_SWITCHES = {
    Flag.KILL: Env.KILL_SWITCH,
    Flag.PAUSE: Env.PAUSE_SWITCH,
    Flag.STOP_REQUEST: Env.STOP_REQUEST,
    Flag.SAVE: Env.SAVE_SWITCH,
}


class Agrees(Protocol):
    """A group of ranks that can find the highest of each of some values, and hear of each rank's."""

    def highest(self, values: list[float]) -> list[float]: ...

    def gather(self, value: str) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What every rank does now."""

    stop: TrainerStop | None = None
    save: bool = False
    spike: bool = False
    """Whether a loss spike began with the last step."""


class Hooks:
    """The files, signals and measures that are looked at after each step. Files are polled by rank 0 alone."""

    def __init__(
        self, environ: Mapping[str, str], *, polls: bool, margin_s: float, memory: MemoryUsage | None = None
    ) -> None:
        self._polls, self._margin_s = polls, margin_s
        self._files = {flag: Path(environ[name]) for flag, name in _SWITCHES.items() if environ.get(name)}
        self._deadline = Path(environ[Env.DEADLINE]) if environ.get(Env.DEADLINE) else None
        self._memory = memory or MemoryUsage()
        self._answered: tuple[int, int] | None = None
        self._taken: tuple[int, int] | None = None
        self._signal = ""
        self.detail = ""
        """What was seen by this rank, for the stop reason."""

    def catch_signals(self) -> None:
        """From here on TERM and USR1, which Slurm sends to ranks ahead of the end, ask for a save and a stop."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._caught)

    def _caught(self, number: int, _: object) -> None:
        self._signal = signal.Signals(number).name

    def agree(self, group: Agrees, state: RunState) -> Decision:
        """One small all-reduce: what any rank asks for, all do, and the fullest memory is everyone's."""
        flags = self._asked(state)
        *up, host, gpu = group.highest([*(float(flag in flags) for flag in Flag), *self._memory.measured()])
        stop = next((reason for flag, reason in REASONS.items() if up[flag]), None)
        full = "" if stop else self._memory.too_full(host, gpu)
        if full:
            stop = TrainerStop.MEMORY
            self.detail = f"{full} ({', '.join(filter(None, group.gather(self._memory.name_if_full())))})"
        return Decision(stop=stop, save=bool(up[Flag.SAVE]), spike=bool(up[Flag.SPIKE]))

    def _asked(self, state: RunState) -> set[Flag]:
        asked = set()
        if not all(math.isfinite(value) for value in (state.loss, state.grad_norm) if value is not None):
            began = f"; began in {state.fault}" if state.fault else ""
            self.detail = f"loss {state.loss} and gradient norm {state.grad_norm} at step {state.step}{began}"
            asked.add(Flag.NAN)
        if self._signal:
            self.detail = self.detail or f"signal {self._signal}"
            asked.add(Flag.STOP_REQUEST)
        if state.spike:
            asked.add(Flag.SPIKE)
        return asked | self._polled(state) if self._polls else asked

    def _polled(self, state: RunState) -> set[Flag]:
        up = {flag for flag, path in self._files.items() if self._is_asked(flag, path, state)}
        if up - {Flag.SAVE}:
            self.detail = self.detail or f"{self._files[min(up)]} exists"
        return up | {Flag.DEADLINE} if self._is_late(state) else up

    def _is_asked(self, flag: Flag, path: Path, state: RunState) -> bool:
        """Whether the file is there; a file system that does not answer asks for nothing, and is told of."""
        try:
            seen = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            note(state, f"switch {path} cannot be looked at: {error.strerror}")
            return False
        return flag is not Flag.SAVE or (seen.st_ino, seen.st_mtime_ns) != self._answered

    def _is_late(self, state: RunState) -> bool:
        """Whether what is left of the job is less than twice (slowest step + last save), and the margin."""
        end = read_time(self._deadline) if self._deadline else None
        if end is None:
            return False
        left = end - time.time()
        needed = self._margin_s + 2 * (state.slowest_step_s + state.save_s)
        if left < needed:
            self.detail = self.detail or (
                f"{left:.0f} s are left of the job, and {needed:.0f} s are kept free: {self._margin_s:g} s + "
                f"2 x (slowest step {state.slowest_step_s:.1f} s + save {state.save_s:.1f} s)"
            )
        return left < needed

    def take_save(self) -> None:
        """A save begins: it answers the save switch as it is now, and no other is begun until someone touches it."""
        path = self._files.get(Flag.SAVE)
        if path is not None and self._polls:
            self._answered = self._taken = _identity(path)

    def answer_save(self, *, saved: bool) -> None:
        """That save has ended: take the switch away if it was obeyed, and not touched since."""
        path, taken = self._files.get(Flag.SAVE), self._taken
        self._taken = None
        if path is not None and taken is not None and saved and _identity(path) == taken:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                print(f"save switch {path} cannot be removed: {error}", flush=True)  # noqa: T201 - the log is stdout


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns
