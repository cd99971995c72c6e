"""Reports to the driver: log lines, heartbeats and the stop reason. A failed write never stops training."""

import time
from collections.abc import Mapping
from pathlib import Path

from opsctl.integrations.opsctl_contract import list_heartbeats
from opsctl.trainer.atomic_files import write_atomic
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.contract import Env, Heartbeat, Phase, StopReason, TrainerStop, read_time, to_json
from opsctl.trainer.rank_process import RankProcess
from opsctl.trainer.run_state import RunState

MAX_TICK_AGE_S = 3 * 3600.0
"""Limit of the age of the last cron tick; cron ticks at least hourly."""


def print_line(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - the log is stdout


def now_text() -> str:
    """Return the local time to the millisecond, in the format of newer Megatron versions before iteration lines."""
    now = time.time()
    return f"[{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03}]"


class Pulse:
    """Writes heartbeats: `train.json` on rank 0, `<node>-<local rank>.json` on the first rank of every node."""

    def __init__(self, environ: Mapping[str, str], process: RankProcess, config: TrainerConfig) -> None:
        self._paths = list_heartbeats(environ, rank=process.rank, local_rank=process.local_rank, node=process.node)
        self._attempt, self._process, self._config = environ.get(Env.ATTEMPT, ""), process, config
        self._last: tuple[Phase, float] | None = None
        self._last_tick = environ.get(Env.LAST_TICK) if process.is_first else None

    def write_heartbeat(self, phase: Phase, state: RunState) -> None:
        """Write the heartbeat if the phase is new or the last heartbeat is older than `log.heartbeat_s`."""
        now = time.monotonic()
        if self._last and self._last[0] is phase and now - self._last[1] < self._config.log.heartbeat_s:
            return
        self._last = phase, now
        if self._last_tick:
            warn_of_silent_watcher(Path(self._last_tick), state)
        text = to_json(self._heartbeat(phase, state))
        for path in self._paths:
            try:
                write_atomic(path, text)
            except OSError as error:
                note(state, f"heartbeat {path} cannot be written: {error.strerror}")

    def _heartbeat(self, phase: Phase, state: RunState) -> Heartbeat:
        return Heartbeat(
            attempt=self._attempt,
            node=self._process.node,
            rank=self._process.rank,
            phase=phase,
            step=state.step,
            at=time.time(),
            limit_s=self._limit_s(phase, state),
            last_steps=self._config.steps,
            checkpoint_step=state.checkpoint_step,
            loss=state.loss,
            step_s=state.step_s,
            note=state.notes[-1] if state.notes else "",
        )

    def _limit_s(self, phase: Phase, state: RunState) -> float:
        limits = self._config.limits
        per_step = limits.step_s or max(120.0, 20 * state.slowest_step_s)
        known = {Phase.INIT: limits.init_s, Phase.SAVE: limits.save_s, Phase.EXIT: limits.exit_s}
        return known.get(phase, per_step + self._config.log.heartbeat_s)


def warn_of_silent_watcher(last_tick: Path, state: RunState) -> None:
    """Note once that cron has not ticked for long: a failure of this run would alert nobody."""
    ticked = read_time(last_tick)
    if ticked is not None and time.time() - ticked > MAX_TICK_AGE_S:
        note(state, f"the watchdogs do not run: cron last ticked at {time.ctime(ticked)} ({last_tick})")


def write_stop_reason(environ: Mapping[str, str], reason: TrainerStop, state: RunState, *, detail: str) -> None:
    """Write the stop reason to the file that the driver named in TRAIN_STOP_REASON."""
    path = environ.get(Env.STOP_REASON)
    record = StopReason(
        reason=reason,
        step=state.step,
        at=time.time(),
        detail=detail,
        checkpoint_step=state.checkpoint_step,
        notes=tuple(state.notes),
    )
    if path:
        try:
            write_atomic(Path(path), to_json(record))
        except OSError as error:
            print_line(f"stop reason {path} cannot be written: {error}")


def note(state: RunState, text: str) -> None:
    """Record and print, once, a problem that does not stop the run."""
    if text not in state.notes:
        state.notes.append(text)
        print_line(text)


def warn(state: RunState, process: RankProcess, text: str) -> None:
    """Record, on every rank, a problem that every rank knows; rank 0 prints it."""
    state.notes.append(text)
    if process.is_first:
        print_line(text)
