"""The progress of a run, from its heartbeat and from bounded samples of its log."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise

from opsctl.base.errors import InputError
from opsctl.calc.time_left import Eta, time_left
from opsctl.checkpoints.scan import FoundCheckpoint, describe_stepless, list_checkpoints_in
from opsctl.state.files import is_regular, read_change_s, read_size_bytes
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.iteration_lines import sampled, tail
from opsctl.telemetry.progress.signs import find_directories, read_log_signs
from opsctl.telemetry.progress.step_pace import median_of_known, median_step_s
from opsctl.telemetry.progress.train_settings import read_checkpoint_table, read_settings, read_step_pattern
from opsctl.trainer.contract import Heartbeat, Phase, read_heartbeat
from opsctl.trainer.manifest import COMPLETE, list_checkpoints

CURVE_LINES = 240
"""Newest iteration lines for the curve of the loss."""
STEP_TIME_LINES = 50
"""Newest lines for the median time of a step."""
TFLOPS_LINES = 20
"""Newest lines for the median TFLOPs."""
EPOCH_BYTES = 1 << 18
"""The end of a log without steps in which epochs are looked for."""
MAX_LEFT_S = 1e10
"""Three centuries: a longer time left comes from wrong numbers in a log."""
MAX_CHECKPOINTS = 64
"""Checkpoints of a directory that are looked at, the newest."""
MAX_INTERVALS = 5
"""The save interval is the largest of the newest few. A save at an exit splits an interval into two smaller ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSave:
    """The newest and the next checkpoint; None for unknown values."""

    checkpoint_step: int | None = None
    """The newest checkpoint."""
    checkpoint_at: datetime | None = None
    """When the newest checkpoint was written, by the file system's clock; None if it lies elsewhere."""
    checkpoint_note: str = ""
    """What was found instead of a checkpoint with a step: a file without one, or checkpoints that seem incomplete."""
    checkpoint_doubt: str = ""
    """Why they seem incomplete."""
    next_save: int | None = None
    """The step of the next checkpoint."""

    @property
    def found_instead(self) -> str:
        """What was found instead of a checkpoint with a step, with the doubt about it."""
        return ", ".join(filter(None, (self.checkpoint_note, self.checkpoint_doubt)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPace:
    """The pace of the tasks, in seconds, from which the end of the run is estimated."""

    task_s: float = math.inf
    """Time limit of a task."""
    running_s: float = 0.0
    """Time left of the running task; 0 if no task runs."""
    waits_s: Sequence[float] = ()
    """Waits between tasks so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(NextSave):
    """The progress of a run; None for unknown values."""

    step: int
    """Of a trainer that logs no steps: that of the newest checkpoint, or 0 if that has none either."""
    last_step: int | None = None
    loss: float | None = None
    losses: tuple[float, ...] = ()
    """Of the newest lines of the log, every step once, the oldest first."""
    losses_from: int | None = None
    """The step of the first loss."""
    tokens: int | None = None
    step_s: float | None = None
    """Median of the latest steps."""
    usual_step_s: float | None = None
    """Median over the whole run, of steps with the same batch."""
    tflops: float | None = None
    """Median of the latest steps, per GPU."""
    usual_tflops: float | None = None
    """Median over the whole run, per GPU."""
    phase: str = ""
    at: datetime | None = None
    """Time of the last heartbeat, by the trainer's clock; without a heartbeat, of the last write to the log."""
    note: str = ""
    """A problem reported by the trainer that does not stop the training."""
    next_save_s: float | None = None
    left: Eta | None = None
    """Seconds to the last step; None if the last step or the time of a step is unknown, or no task is queued."""
    is_step_known: bool = True
    epoch: float | None = None
    """The newest epoch in the log, if neither log nor heartbeat name a step."""

    @property
    def place(self) -> str:
        """How far the run is: `step 1,300`, or `epoch 0.52` where no step is known."""
        if self.epoch is not None:
            return f"epoch {self.epoch:g}"
        return f"step {self.step:,}" if self.is_step_known else "step unknown"


def read_progress(run: RunDir, *, attempt: str = "", begin: int = 0, pace: TaskPace | None = None) -> Progress | None:
    """Return the progress, None without a heartbeat, without steps in the log and without checkpoints.

    `attempt` is the running attempt, if any, and `begin` the offset in the log at which the attempt began. Without
    `pace`, the time left is not estimated.
    """
    heartbeat = read_heartbeat(run.heartbeat / "train.json")
    pattern = read_step_pattern(run)
    placed = tail(run.main_log, CURVE_LINES, pattern)
    if heartbeat is None and not placed:
        return _read_without_steps(run, pattern)
    lines = [iteration for _, iteration in placed]
    line = lines[-1] if lines else Iteration(step=0)
    is_behind = bool(
        heartbeat
        and heartbeat.attempt == attempt
        and heartbeat.phase is not Phase.INIT
        and placed
        and placed[-1][0] < begin
    )
    step = _step(heartbeat, line, is_behind=is_behind)
    last_step = (heartbeat and heartbeat.last_steps) or line.last
    step_s = median_step_s(lines[-STEP_TIME_LINES:]) or (heartbeat.step_s if heartbeat else None)
    whole = sampled(run.main_log, pattern=pattern) if lines else []
    curve = [
        iteration for iteration in drop_repeated_steps(lines) if iteration.loss is not None and iteration.step <= step
    ]
    loss = heartbeat.loss if heartbeat else None
    if line.loss is not None and not is_behind:
        loss = line.loss
    saved = heartbeat.checkpoint_step if heartbeat else None
    saves = predict_next_save(run, step, last_step, newest=saved)
    if not (attempt and lines) and (saves.checkpoint_step or 0) > step:
        # The last start, or this one, has not come to its first step: the train is where its checkpoint is.
        step = saves.checkpoint_step or step
        saves = predict_next_save(run, step, last_step, newest=saved)
    return Progress(
        step=step,
        last_step=last_step,
        loss=loss,
        losses=tuple(iteration.loss for iteration in curve if iteration.loss is not None),
        losses_from=curve[0].step if curve else None,
        tokens=line.tokens,
        step_s=step_s,
        usual_step_s=median_step_s(sample for sample in whole if sample.global_batch == line.global_batch),
        tflops=median_of_known(iteration.tflops for iteration in lines[-TFLOPS_LINES:]),
        usual_tflops=median_of_known(sample.tflops for sample in whole),
        phase=heartbeat.phase.value if heartbeat else "",
        at=_time(heartbeat.at if heartbeat else read_change_s(run.main_log)),
        note=heartbeat.note if heartbeat else "",
        next_save_s=(saves.next_save - step) * step_s if saves.next_save and step_s else None,
        left=_left(step, last_step, step_s, pace) if pace else None,
        **asdict(saves),
    )


def _read_without_steps(run: RunDir, pattern: str) -> Progress | None:
    """Return what the epochs and the checkpoints alone show: the step of the newest, and when it was written."""
    saves = predict_next_save(run, 0, None)
    begin = max(0, (read_size_bytes(run.main_log) or 0) - EPOCH_BYTES)
    log = read_log_signs(run.main_log, begin, pattern)
    if log.highest_epoch is None and saves.checkpoint_step is None and not saves.checkpoint_note:
        return None
    return Progress(
        step=saves.checkpoint_step or 0,
        is_step_known=saves.checkpoint_step is not None,
        epoch=log.highest_epoch,
        loss=log.loss,
        at=_time(read_change_s(run.main_log)) if log.highest_epoch is not None else saves.checkpoint_at,
        **asdict(saves),
    )


def _step(heartbeat: Heartbeat | None, line: Iteration, *, is_behind: bool) -> int:
    """Return the later step: the log has lines at intervals, and a starting trainer has no step yet.

    After a start from an earlier checkpoint, the heartbeat is right, and behind the last line of the attempt before.
    """
    if heartbeat and is_behind:
        return heartbeat.step
    return max(heartbeat.step if heartbeat else 0, line.step)


def drop_repeated_steps(lines: Sequence[Iteration]) -> list[Iteration]:
    """Drop the lines of steps that were done again later, after a start from an earlier checkpoint."""
    iterations: list[Iteration] = []
    for line in reversed(lines):
        if not iterations or line.step < iterations[-1].step:
            iterations.append(line)
    return iterations[::-1]


def _time(at: float | None) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC) if at is not None else None
    except (ValueError, OverflowError, OSError):
        return None


def _left(step: int, last: int | None, step_s: float | None, pace: TaskPace) -> Eta | None:
    if not last or step_s is None or not math.isfinite(step_s) or step_s <= 0:
        return None
    try:
        left = time_left(
            steps=max(0, last - step),
            step_s=step_s,
            attempt_s=pace.task_s,
            running_s=pace.running_s,
            waits_s=pace.waits_s,
        )
    except InputError:
        return None
    return left if left.late < MAX_LEFT_S else None


def predict_next_save(run: RunDir, step: int, last_step: int | None, *, newest: int | None = None) -> NextSave:
    """Return the checkpoints around `step`. `newest` overrides the newest checkpoint in the directory."""
    is_embedded = is_regular(run.trainer_config)
    found = [] if is_embedded else _find_checkpoints(run)
    times = _list_times(run, found, is_embedded=is_embedded)
    stepless_at = max((checkpoint.written for checkpoint in found if not checkpoint.is_partial), default=None)
    steps = sorted(times)
    intervals = [after - before for before, after in pairwise(steps[-MAX_INTERVALS - 1 :])]
    every = read_checkpoint_table(run).get("every") if is_embedded else max(intervals, default=None)
    due = last_step if is_embedded else None
    newest = newest if newest is not None else max(steps, default=None)
    if every:
        due = (step // every + 1) * every
        due += every * (due == newest)  # the checkpoint may be there before its log line
    if due is not None and last_step is not None:
        due = min(due, last_step)
    note, doubt = describe_stepless(found, MAX_CHECKPOINTS) if newest is None else ("", "")
    return NextSave(
        checkpoint_step=newest,
        next_save=due if due is not None and due > step else None,
        checkpoint_at=stepless_at if newest is None else times.get(newest),
        checkpoint_note=note,
        checkpoint_doubt=doubt,
    )


def _find_checkpoints(run: RunDir) -> list[FoundCheckpoint]:
    """Return the checkpoints of a foreign trainer. The log is read only if no other place holds any."""
    settings = read_settings(run)
    directories = [directory.path for directory in find_directories(run, settings)]
    found = list_checkpoints_in(directories or [run.checkpoints], MAX_CHECKPOINTS)
    if not found and settings and (logged := read_log_signs(run.main_log, 0, None).saved_paths):
        places = find_directories(run, settings, logged=logged)
        found = list_checkpoints_in([place.path for place in places], MAX_CHECKPOINTS)
    return found


def _list_times(run: RunDir, found: Sequence[FoundCheckpoint], *, is_embedded: bool) -> dict[int, datetime | None]:
    """Return when the checkpoints of any trainer were written, by their steps. Partial ones are left out."""
    if is_embedded:
        with contextlib.suppress(OSError):
            complete = list_checkpoints(run.checkpoints)
            return {checkpoint.step: _time(read_change_s(checkpoint.path / COMPLETE)) for checkpoint in complete}
        return {}
    return {
        checkpoint.step: checkpoint.written
        for checkpoint in found
        if checkpoint.step is not None and not checkpoint.is_partial
    }
