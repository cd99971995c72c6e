"""Requests to save or to stop, and the agreement of all ranks to act on them after the same step."""

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from opsctl.integrations.opsctl_contract import TrainFiles
from opsctl.trainer.contract import TrainerStop
from opsctl.trainer.heartbeats import note
from opsctl.trainer.memory_usage import MemoryUsage
from opsctl.trainer.process_groups import Control
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


REASONS = {flag: TrainerStop[flag.name] for flag in Flag if flag.name in TrainerStop.__members__}
"""The flags that stop the run, and the reasons, which have the same names."""


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
        self._problems: list[str] = []
        self._files = TrainFiles(environ, self._problems.append)
        self._memory = memory or MemoryUsage()
        self._signal = ""
        self.detail = ""
        """Detail of the stop reason, as this rank observed it."""

    def catch_signals(self) -> None:
        """Treat SIGTERM and SIGUSR1, which Slurm sends before the end of a job, as requests to save and stop."""
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._record_signal)

    def _record_signal(self, number: int, _: object) -> None:
        self._signal = signal.Signals(number).name

    def agree(self, group: Control, state: RunState) -> Decision:
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
        reason, detail = self._files.find_stop(
            margin_s=self._margin_s, slowest_step_s=state.slowest_step_s, save_s=state.save_s
        )
        self.detail = self.detail or detail
        up = {flag for flag, stop in REASONS.items() if stop == reason}
        if self._files.is_save_requested():
            up.add(Flag.SAVE)
        for problem in self._problems:
            note(state, problem)
        self._problems.clear()
        return up

    def start_save_request(self) -> None:
        """Remember the save switch as it is now: this save answers it, until the file is touched again."""
        if self._polls:
            self._files.start_save()

    def finish_save_request(self, *, saved: bool) -> None:
        """Remove the save switch if the save succeeded and the file has not been touched since."""
        self._files.finish_save(saved=saved)
