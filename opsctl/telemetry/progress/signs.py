"""The signs of progress of a train, of any trainer: steps in the log, heartbeat, checkpoints wherever they lie.

No sign is required. What no sign shows is unknown, which is None here, and never 0. Bounded: at most MAX_LOG_BYTES of
the log and the entries of `checkpoints/scan.py` are read. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from opsctl.checkpoints.save_directories import SaveDirectory, TrainCommand, find_save_directories
from opsctl.checkpoints.scan import CheckpointScan, FoundCheckpoint, scan_directories
from opsctl.settings.loader import TrainSettings
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import Iteration, tail
from opsctl.trainer.contract import Heartbeat, read_heartbeat

MAX_LOG_BYTES = 8 << 20
"""Read from the end of the log."""


class SignKind(StrEnum):
    """The kinds of signs of progress."""

    STEP = "a step in the log"
    HEARTBEAT = "the heartbeat"
    CHECKPOINT = "a checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSigns:
    """What the signs show at one moment; None for what they do not show."""

    step: int | None = None
    """Highest step that the attempt shows: in its log, in its heartbeat, or in a checkpoint newer than its start."""
    total_steps: int | None = None
    """The step at which the run ends."""
    checkpoint: FoundCheckpoint | None = None
    """The newest checkpoint that is not known to be partial. The next attempt resumes there."""
    partial: tuple[FoundCheckpoint, ...] = ()
    """Newer checkpoints that are not complete."""
    changed_ns: int = 0
    """Newest modification in the checkpoint directories; 0 if they hold nothing. Compare with an earlier value only."""
    last_sign: SignKind | None = None
    last_sign_at: datetime | None = None
    has_finished: bool = False
    """Whether the log of the attempt says that the training is over."""
    finished_line: str = ""
    directories: tuple[SaveDirectory, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def resume_step(self) -> int | None:
        """The step that the next attempt resumes from; None if unknown."""
        return self.checkpoint.step if self.checkpoint else None


def read_signs(run: RunDir, config: TrainSettings, *, attempt: str = "", begin: int = 0) -> ProgressSigns:
    """Return the signs of progress of an attempt, which began at the offset `begin` of main_log. Never raises OSError.

    Without `attempt`, the steps in the log count wherever they lie.
    """
    lines = [iteration for offset, iteration in tail(run.main_log, 64) if offset >= begin]
    heartbeat = read_heartbeat(run.heartbeat / "train.json")
    heartbeat = heartbeat if heartbeat and (not attempt or heartbeat.attempt == attempt) else None
    directories = find_directories(run, config)
    scan = scan_directories(directory.path for directory in directories)
    last_sign, last_sign_at = _last_sign(run, lines, heartbeat, scan)
    return ProgressSigns(
        step=_highest_step(lines, heartbeat),
        total_steps=_total_steps(lines, heartbeat),
        checkpoint=scan.newest,
        partial=scan.partial,
        changed_ns=scan.changed_ns,
        last_sign=last_sign,
        last_sign_at=last_sign_at,
        directories=tuple(directories),
        problems=scan.problems,
    )


def has_advanced(before: ProgressSigns, after: ProgressSigns) -> bool:
    """Whether the run got further between two moments: a new checkpoint that the next attempt can resume from.

    A checkpoint counts by its step, and without a step by its time. A step in the log alone is lost with the attempt.
    """
    if after.checkpoint is None:
        return False
    if before.checkpoint is None:
        return True
    if after.checkpoint.step is not None and before.checkpoint.step is not None:
        return after.checkpoint.step > before.checkpoint.step
    return after.checkpoint.changed_ns > before.checkpoint.changed_ns


def find_directories(run: RunDir, config: TrainSettings, *, logged: Sequence[str] = ()) -> list[SaveDirectory]:
    """Return the directories with checkpoints of the train, each with the reason."""
    command = TrainCommand(
        words=config.command,
        environment=config.environment,
        directory=Path(config.setup.directory or run.path),
        checkpoints=run.checkpoints,
    )
    return find_save_directories(command, configured=config.progress.checkpoint_directories, logged=logged)


def _highest_step(lines: Sequence[Iteration], heartbeat: Heartbeat | None) -> int | None:
    steps = [line.step for line in lines]
    if heartbeat and type(heartbeat.step) is int:
        steps.append(heartbeat.step)
    return max(steps, default=None)


def _total_steps(lines: Sequence[Iteration], heartbeat: Heartbeat | None) -> int | None:
    if heartbeat and type(heartbeat.last_steps) is int:
        return heartbeat.last_steps
    return lines[-1].last if lines else None


def _last_sign(
    run: RunDir, lines: Sequence[Iteration], heartbeat: Heartbeat | None, scan: CheckpointScan
) -> tuple[SignKind | None, datetime | None]:
    """Return the newest sign and its time. A step in the log is as new as the log: most lines have no time."""
    signs: list[tuple[float, SignKind]] = []
    if scan.newest:
        signs.append((scan.newest.changed_ns / 1e9, SignKind.CHECKPOINT))
    if heartbeat and type(heartbeat.at) in {int, float}:
        signs.append((heartbeat.at, SignKind.HEARTBEAT))
    if lines and (written := _written(run.main_log)) is not None:
        signs.append((written, SignKind.STEP))
    for at, kind in sorted(signs, reverse=True, key=lambda sign: sign[0]):
        try:
            return kind, datetime.fromtimestamp(at, UTC)
        except (ValueError, OverflowError, OSError):
            continue
    return None, None


def _written(log: Path) -> float | None:
    try:
        return log.stat().st_mtime
    except OSError:
        return None
