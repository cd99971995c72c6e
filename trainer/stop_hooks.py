"""Requests to save or to stop, and the agreement of all ranks to act on them after the same step."""

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
    """Index in the vector of flags that all ranks agree on; the first raised flag is the reason to stop."""

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


class RankGroup(Protocol):
    """A group of ranks with a maximum and a gather of values."""

    def highest(self, values: list[float]) -> list[float]: ...

    def gather(self, value: str) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision that all ranks share after a step."""

    stop: TrainerStop | None = None
    save: bool = False
    spike: bool = False
    """Whether a loss spike began with the last step."""


class Hooks:
    """The files, signals and measurements that request a save or a stop. Only rank 0 polls files."""

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
        """Detail of the stop reason, as this rank observed it."""

    def catch_signals(self) -> None:
        """Treat SIGTERM and SIGUSR1, which Slurm sends before the end of a job, as requests to save and stop."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._record_signal)

    def _record_signal(self, number: int, _: object) -> None:
        self._signal = signal.Signals(number).name

    def agree(self, group: RankGroup, state: RunState) -> Decision:
        """Return the decision of all ranks, by one small all-reduce: flags of any rank and the fullest memory count."""
        flags = self._collect_flags(state)
        *up, host, gpu = group.highest([*(float(flag in flags) for flag in Flag), *self._memory.measure()])
        stop = next((reason for flag, reason in REASONS.items() if up[flag]), None)
        full = "" if stop else self._memory.describe_excess(host, gpu)
        if full:
            stop = TrainerStop.MEMORY
            self.detail = f"{full} ({', '.join(filter(None, group.gather(self._memory.name_if_full())))})"
        return Decision(stop=stop, save=bool(up[Flag.SAVE]), spike=bool(up[Flag.SPIKE]))

    def _collect_flags(self, state: RunState) -> set[Flag]:
        flags = set()
        if not all(math.isfinite(value) for value in (state.loss, state.grad_norm) if value is not None):
            began = f"; began in {state.fault}" if state.fault else ""
            self.detail = f"loss {state.loss} and gradient norm {state.grad_norm} at step {state.step}{began}"
            flags.add(Flag.NAN)
        if self._signal:
            self.detail = self.detail or f"signal {self._signal}"
            flags.add(Flag.STOP_REQUEST)
        if state.spike:
            flags.add(Flag.SPIKE)
        return flags | self._poll_files(state) if self._polls else flags

    def _poll_files(self, state: RunState) -> set[Flag]:
        up = {flag for flag, path in self._files.items() if self._is_requested(flag, path, state)}
        if up - {Flag.SAVE}:
            self.detail = self.detail or f"{self._files[min(up)]} exists"
        return up | {Flag.DEADLINE} if self._is_late(state) else up

    def _is_requested(self, flag: Flag, path: Path, state: RunState) -> bool:
        """Return whether the file requests its flag; an unreadable file requests nothing and is noted."""
        try:
            status = path.lstat()  # a link is a switch itself: its target may be another user's
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            note(state, f"switch {path} cannot be read: {error.strerror}")
            return False
        return flag is not Flag.SAVE or (status.st_ino, status.st_mtime_ns) != self._answered

    def _is_late(self, state: RunState) -> bool:
        """Return whether the job ends in less than 2 x (slowest step + last save) + margin."""
        end = read_time(self._deadline) if self._deadline else None
        if end is None:
            return False
        left = end - time.time()
        needed = self._margin_s + 2 * (state.slowest_step_s + state.save_s)
        if left < needed:
            self.detail = self.detail or (
                f"the job ends in {left:.0f} s, and stopping needs up to {needed:.0f} s: {self._margin_s:g} s + "
                f"2 x (slowest step {state.slowest_step_s:.1f} s + save {state.save_s:.1f} s)"
            )
        return left < needed

    def start_save_request(self) -> None:
        """Remember the save switch as it is now: this save answers it, until the file is touched again."""
        path = self._files.get(Flag.SAVE)
        if path is not None and self._polls:
            self._answered = self._taken = _identity(path)

    def finish_save_request(self, *, saved: bool) -> None:
        """Remove the save switch if the save succeeded and the file has not been touched since."""
        path, taken = self._files.get(Flag.SAVE), self._taken
        self._taken = None
        if path is not None and taken is not None and saved and _identity(path) == taken:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                print(f"save switch {path} cannot be removed: {error}", flush=True)  # noqa: T201 - the log is stdout


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()  # a link is a switch itself: its target may be another user's
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
