"""A hang that is certain: no progress, while a rank is stopped by a signal or no rank uses the CPU.

The rank wrappers mark ranks that do nothing (rank_activity.py). A training that evaluates, compiles or saves uses the
CPU or a disk, and has no such marks on all ranks. One that waits for a service prints lines, which count beside idle
ranks. Ranks that wait for a GPU may use the CPU for ever: such a hang is left to the watchdog `hang`, which alerts, and
has the attempt ended if `[watch] hang_cancels` is set.
"""

import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from opsctl.base.ports import Clock
from opsctl.guard.attempt_record import read_start
from opsctl.guard.stop_request import StopKind
from opsctl.settings.loader import GuardSettings
from opsctl.state.files import list_names, read_bounded
from opsctl.state.journal import Journal, replay
from opsctl.state.run_dir import Attempt
from opsctl.telemetry.progress.signs import LogSigns, find_gap, read_log_signs
from opsctl.telemetry.progress.step_pace import median_step_s
from opsctl.telemetry.progress.train_settings import read_step_pattern
from opsctl.trainer.contract import Heartbeat, Phase, read_heartbeat

STOPPED_FLOOR_S = 20.0
"""Minimum of a learnt limit for a stopped rank: time for a person or a program that stops a process for a moment."""
IDLE_FLOOR_S = 45.0
"""Minimum of a learnt limit for idle ranks if a restart keeps the nodes: a mistake costs some steps, but once only."""
PATIENT_FLOOR_S = 300.0
"""The same if a restart costs the nodes, or right after an attempt that hung: the ranks may wait for a service or a
retry that ends by itself. Also the limit for a stopped rank of an attempt whose rhythm is unknown."""
LIMIT_LINES, LIMIT_PAUSES = 20, 3
"""As for the watchdog `hang`: the time of so many lines, and so many times the longest pause that ended by itself."""
MAX_LOOK_GAP_S = 120.0
"""After a longer gap between two looks, the pause starts anew: Slurm suspended the guard and the ranks, or the guard
waited for the disk as well. The marks may be older than the gap."""
MAX_NAMED = 8
MARK = re.compile(r"\b(stopped|idle|ended) (\d{1,8}) (\d{1,8})\b", re.ASCII)
MAX_MARKS_BYTES = 64 << 10
"""Of one node."""
MARKS_SHARE = 0.05
"""Share of the time in which marks are read. Thousands of nodes may be idle for hours, while rank 0 prepares data."""
MIN_LINES = 5
"""With fewer lines the rhythm of the attempt is not known: ranks may still wait for each other's start."""


@dataclass(slots=True, kw_only=True)
class QuietRanks:
    """Decides whether an attempt certainly hangs, by all observations since the start of the body."""

    marks: Path
    """The directory of the rank wrappers' marks; it is missing until a rank is quiet."""
    log: Path
    """The log, whose end shows the last progress at the latest."""
    read_log: Callable[[], LogSigns]
    """Returns what the log of this attempt shows."""
    read_heartbeat: Callable[[], Heartbeat | None]
    """Returns the heartbeat of this attempt."""
    clock: Clock
    limit_s: float | None = None
    """The setting `quiet_seconds`; None: learnt, 0: never."""
    is_restart_cheap: Callable[[], bool] = lambda: False
    """Whether a mistake costs no more than a restart in the same allocation. Called while all ranks are idle."""
    _started_s: float = field(init=False)
    _looked_s: float = field(init=False)
    _size_bytes: int = -1
    _grew_s: float = 0.0
    _next_marks_s: float = 0.0
    _since_s: float | None = None
    _action_at: float | None = None
    _action_s: float = 0.0
    _progress: tuple[object, ...] = ()
    _counts_output: bool = False
    _line_s: float | None = None
    _longest_s: float = 0.0

    def __post_init__(self) -> None:
        self._started_s = self._looked_s = self.clock.monotonic()

    def find_hang(self) -> str:
        """Return why the attempt certainly hangs; an empty string if it does not, or if nothing is certain."""
        if self.limit_s == 0:
            return ""
        self._note_growth()
        self._note_gap()
        if self._looked_s < self._next_marks_s:
            return ""
        stopped, is_idle = read_marks(self.marks)
        took_s = self.clock.monotonic() - self._looked_s
        self._next_marks_s = self._looked_s + took_s / MARKS_SHARE
        if not stopped and not is_idle:
            self._end_pause()
            return ""
        self._counts_output = not stopped
        quiet_s = self._measure_pause()
        limit_s = self._find_limit(is_stopped=bool(stopped))
        if limit_s is None or quiet_s <= limit_s or (not stopped and self._is_other_phase()):
            return ""
        evidence = f"stopped by a signal (state T): {self._name(stopped)}" if stopped else "no rank uses the CPU"
        return f"no progress for {quiet_s:.0f} s (limit {limit_s:.0f} s); {evidence}"

    def _name(self, ranks: Sequence[int]) -> str:
        """Return the ranks with their nodes, which are known by the names of the ranks' logs."""
        from opsctl.diagnosis.line_origin import find_homes  # noqa: PLC0415 (for an attempt that hangs only)

        homes = find_homes(self.marks.parent)
        names = [f"rank {rank}" + (f" on {homes[rank]}" if rank in homes else "") for rank in ranks[:MAX_NAMED]]
        return ", ".join(names) + (f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else "")

    def _note_growth(self) -> None:
        try:
            size_bytes = self.log.stat().st_size
        except OSError:
            return
        if size_bytes != self._size_bytes:
            self._size_bytes, self._grew_s = size_bytes, self.clock.monotonic()

    def _note_gap(self) -> None:
        now_s = self.clock.monotonic()
        if now_s - self._looked_s > MAX_LOOK_GAP_S:
            self._since_s, self._grew_s = None, now_s
        self._looked_s = now_s

    def has_advanced(self) -> bool:
        """Return whether the log or the heartbeat has advanced since `find_hang` read them, or the ranks work again."""
        stopped, is_idle = read_marks(self.marks)
        if not stopped and not is_idle:
            return True
        return self._read_progress(self.read_log(), self.read_heartbeat()) != self._progress

    def _end_pause(self) -> None:
        if self._since_s is not None:
            self._longest_s = max(self._longest_s, self.clock.monotonic() - self._since_s)
        self._since_s = None

    def _measure_pause(self) -> float:
        """Return for how long neither the log nor the heartbeat has advanced: at least since the ranks are quiet."""
        log, heartbeat = self.read_log(), self.read_heartbeat()
        progress = self._read_progress(log, heartbeat)
        if progress != self._progress:
            self._end_pause()
        self._progress = progress
        if self._since_s is None:
            self._since_s = max(self._grew_s, self._date_action(heartbeat))
        self._line_s = self._measure_lines(log, self._since_s - self._started_s)
        return self.clock.monotonic() - self._since_s

    def _read_progress(self, log: LogSigns, heartbeat: Heartbeat | None) -> tuple[object, ...]:
        """Return what changes with every progress.

        Every new line counts if the log has no known steps, and beside idle ranks. Peers of a stopped rank may warn.
        """
        output = self._size_bytes if self._counts_output or not log.steps else None
        return log.steps[-1:], output, heartbeat.at if heartbeat else None

    def _date_action(self, heartbeat: Heartbeat | None) -> float:
        """Return when the guard first read the trainer's last action, on the monotonic clock; 0 without a heartbeat.

        The time in the heartbeat is of another node's clock, and clocks jump.
        """
        if heartbeat is None:
            return 0.0
        if heartbeat.at != self._action_at:
            self._action_at, self._action_s = heartbeat.at, self.clock.monotonic()
        return self._action_s

    def _measure_lines(self, log: LogSigns, trained_s: float) -> float | None:
        """Return the seconds from line to line: as logged, otherwise of all the time since the start."""
        count, step_s = count_lines(log), median_step_s(log.steps)
        if count < MIN_LINES:
            return None
        return find_gap(log) * step_s if step_s is not None else trained_s / count

    def _find_limit(self, *, is_stopped: bool) -> float | None:
        if self.limit_s is not None:
            return self.limit_s
        if self._line_s is None:
            return PATIENT_FLOOR_S if is_stopped else None
        idle_floor_s = IDLE_FLOOR_S if self.is_restart_cheap() else PATIENT_FLOOR_S
        floor_s = STOPPED_FLOOR_S if is_stopped else idle_floor_s
        return max(floor_s, LIMIT_LINES * self._line_s, LIMIT_PAUSES * self._longest_s)

    def _is_other_phase(self) -> bool:
        """Whether the trainer says that it starts, evaluates, saves or exits: nothing is known about such pauses."""
        heartbeat = self.read_heartbeat()
        return heartbeat is not None and heartbeat.phase is not Phase.TRAIN


def make_quiet_ranks(journal: Journal, attempt: Attempt, rules: GuardSettings) -> QuietRanks:
    """Return the judge of an attempt whose body has not started."""
    run = journal.run

    def read_log() -> LogSigns:
        start = read_start(attempt)
        return read_log_signs(run.main_log, start.main_log if start else 0, read_step_pattern(run))

    def read_own_heartbeat() -> Heartbeat | None:
        heartbeat = read_heartbeat(run.heartbeat / "train.json")
        return heartbeat if heartbeat and heartbeat.attempt == attempt.name else None

    def has_hung_last() -> bool:
        ends = list(replay(journal.events()).finalized.values())
        return bool(ends) and ends[-1].outcome == StopKind.HUNG

    return QuietRanks(
        marks=run.attempt_logs(attempt.name) / "quiet",
        log=run.main_log,
        read_log=read_log,
        read_heartbeat=read_own_heartbeat,
        clock=journal.clock,
        limit_s=rules.quiet_seconds,
        is_restart_cheap=cache(lambda: rules.restart_in_place and not has_hung_last()),
    )


def read_marks(directory: Path) -> tuple[list[int], bool]:
    """Return the ranks that are stopped, and whether all ranks are quiet.

    A directory in which other users may have left marks says nothing.
    """
    try:
        owner, status = directory.parent.stat().st_uid, directory.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == owner and not status.st_mode & 0o022
        names = list_names(directory) if is_own else []
        text = b"\n".join(read_bounded(directory / name, MAX_MARKS_BYTES) for name in names).decode(errors="replace")
    except OSError:
        return [], False
    marks = [(mark[1], int(mark[2]), int(mark[3])) for mark in MARK.finditer(text)]
    stopped = sorted(rank for kind, rank, _ in marks if kind == "stopped")
    ranks = {rank for _, rank, _ in marks}
    is_quiet = bool(marks) and len(ranks) >= max(of for _, _, of in marks)
    return stopped, is_quiet and any(kind != "ended" for kind, _, _ in marks)


def count_lines(log: LogSigns) -> int:
    """Return about how many lines with a step the log of the attempt has. Only the newest are known one by one."""
    if log.first is None or log.highest is None:
        return 0
    return max(len(log.steps), round((log.highest - log.first.step) / find_gap(log)) + 1)
