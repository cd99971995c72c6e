"""What shows the progress of any trainer: the steps and events in its log, and checkpoints wherever they lie.

Bounded: at most 3 MiB of the log and the entries of `checkpoints/scan.py` are read. Needs no torch.
"""

import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

from opsctl.checkpoints.save_directories import SaveDirectory, TrainCommand, find_save_directories
from opsctl.checkpoints.scan import Save, find_saves, list_checkpoints_in
from opsctl.settings.loader import TrainSettings
from opsctl.state.files import MAX_SETTINGS_BYTES, is_regular, open_regular, read_bounded
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.logs.log_lines import blank_own_lines
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.iteration_lines import read_window
from opsctl.telemetry.progress.log_events import ProgressEvent, ProgressEventKind
from opsctl.telemetry.progress.log_formats import formats_for, load_epochs
from opsctl.telemetry.progress.step_reader import StepReader

MAX_LOG_BYTES = 2 << 20
"""Read from the end of the attempt's part of the log."""
MAX_HEAD_BYTES = 256 << 10
"""Read from the beginning of the attempt's part of the log."""
MAX_LOGGED_PATHS = 8
MEDIAN_STEPS = 50
MAX_LISTED_SAVES = 64
"""Checkpoints of a directory that are looked at, the newest."""

VALUE = re.compile(rb"(?i)(?:loss|acc(?:uracy)?|perplexity|ppl)\b['\"]?[ \t]{0,4}[:=]?[ \t]{0,4}['\"]?[-+]?[\d.]")
MAX_LINE_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSigns:
    """What the log of one attempt shows."""

    first: Iteration | None = None
    """The first step of the training; not a step 0, at which a progress bar begins."""
    steps: tuple[Iteration, ...] = ()
    """The newest steps, the oldest first."""
    series: tuple[Iteration, ...] = ()
    """The newest step of each series: an evaluation, or a second phase, counts its own steps to its own end."""
    highest: int | None = None
    has_restarted: bool = False
    """Whether the steps of a series began again, as those of the next epoch do."""
    events: tuple[ProgressEvent, ...] = ()
    first_epoch: float | None = None
    """The first epoch that the log names; None unless the epochs advance, or a line has values of an epoch."""
    highest_epoch: float | None = None
    loss: float | None = None
    """The newest loss, of whatever line."""

    def has(self, *kinds: ProgressEventKind) -> bool:
        return any(event.kind in kinds for event in self.events)

    @property
    def resumes(self) -> list[ProgressEvent]:
        """What the trainer says about the checkpoint from which it goes on."""
        kinds = {ProgressEventKind.RESUMED, ProgressEventKind.RESUMING}
        return [event for event in self.events if event.kind in kinds and event.is_found]

    def resumes_from(self, directories: Sequence[Path]) -> bool:
        """Whether the trainer says that it went on from a checkpoint, and not from a model elsewhere."""
        for event in self.resumes:
            is_named = event.path is not None and not {"/", "."}.isdisjoint(event.path)
            if not is_named and event.step != 0:  # not a path, as in `from snapshot`
                return True
            if event.path and any(Path(event.path).is_relative_to(directory) for directory in directories):
                return True
        return False

    @property
    def saved_paths(self) -> list[str]:
        """The newest paths that the log names, each once."""
        kinds = {ProgressEventKind.SAVING, ProgressEventKind.SAVED}
        paths = [event.path for event in reversed(self.events) if event.path and event.kind in kinds]
        return list(dict.fromkeys(paths))[:MAX_LOGGED_PATHS]


def read_log_signs(log: Path, begin: int = 0, pattern: str | None = "", *, end: int = 0) -> LogSigns:
    """Return what a log shows between two offsets; reads the beginning and the end of a long part. `end` 0: all.

    A pattern that no line fits hides no steps: then the known formats count. None: only the events, which is faster.
    """
    signs = _read_log_signs(log, begin, pattern, end)
    return _read_log_signs(log, begin, "", end) if pattern and not signs.steps else signs


def _read_log_signs(log: Path, begin: int, pattern: str | None, end: int) -> LogSigns:
    try:
        with os.fdopen(open_regular(log), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            size = min(size, end) if end else size
            if size - begin <= MAX_HEAD_BYTES + MAX_LOG_BYTES:
                return _read_parts([read_window(file.fileno(), begin, size, is_whole=True)], pattern)
            head = read_window(file.fileno(), begin, begin + MAX_HEAD_BYTES, is_whole=True)
            last = read_window(file.fileno(), size - MAX_LOG_BYTES, size)
            return _read_parts([head[: head.rfind(b"\n") + 1], last], pattern)
    except OSError:
        return LogSigns()


def _read_parts(parts: Sequence[bytes], pattern: str | None) -> LogSigns:
    """Return what parts of a log show. The newest steps are those of the last part alone."""
    events: list[ProgressEvent] = []
    newest: deque[Iteration] = deque(maxlen=MEDIAN_STEPS)
    series: dict[int | None, Iteration] = {}
    beginnings: dict[int | None, Iteration] = {}
    highest: int | None = None
    has_restarted = False

    def add(step: Iteration) -> None:
        nonlocal highest, has_restarted
        before, begun = series.get(step.last), beginnings.get(step.last)
        has_restarted |= before is not None and begun is not None and step.step <= begun.step < before.step
        if begun is None or begun.step == 0:
            beginnings[step.last] = step
        series[step.last] = step
        highest = max(step.step, highest or 0)
        newest.append(step)

    epochs: list[float] = []
    loss: float | None = None
    for data in parts:
        epochs += find_epochs(data)
        reader = StepReader(() if pattern is None else formats_for(pattern))
        newest.clear()
        for _, line in reader.find_lines(data):
            facts = reader.read(line, is_candidate=True)
            events += facts.events
            loss = facts.values.get("loss", loss)
            for step in facts.iterations:
                add(step)
        if last := reader.rest():
            add(last)
    return LogSigns(
        first=_find_first(series, beginnings),
        steps=tuple(newest),
        series=tuple(series.values()),
        highest=highest,
        has_restarted=has_restarted,
        events=tuple(events),
        first_epoch=epochs[0] if epochs else None,
        highest_epoch=max(epochs, default=None),
        loss=loss,
    )


def find_epochs(data: bytes) -> list[float]:
    """Return the epochs that lines name, each change once; empty if one epoch is all that is named, without values.

    A trainer may name an epoch in its settings as well.
    """
    epochs: list[float] = []
    has_values = False
    for _, epoch, has_value in iterate_epochs(data):
        if epochs and epoch == epochs[-1] and (has_values or len(epochs) > 1):
            continue
        has_values |= has_value
        epochs += [epoch] if epochs[-1:] != [epoch] else []
    return epochs if has_values or len(epochs) > 1 else []


def iterate_epochs(data: bytes) -> Iterator[tuple[int, float, bool]]:
    """Yield offset and epoch of the lines that name one, and whether the line has values of the training."""
    data = blank_own_lines(data)
    for match in _compile_epoch().finditer(data):
        begin = data.rfind(b"\n", 0, match.start()) + 1
        line = data[begin : begin + MAX_LINE_CHARS].split(b"\n", 1)[0]
        yield begin, float(match["epoch"]), VALUE.search(line) is not None


@cache
def _compile_epoch() -> re.Pattern[bytes]:
    pattern = load_epochs().step
    assert pattern is not None
    return re.compile(pattern.pattern.encode())


def _find_first(series: Mapping[int | None, Iteration], beginnings: Mapping[int | None, Iteration]) -> Iteration | None:
    """Return the first step of the longest series: the progress of a preparation has steps as well."""
    longest = max(series.values(), key=lambda step: max(step.step, step.last or 0), default=None)
    return None if longest is None else beginnings[longest.last]


def find_gap(log: LogSigns) -> float:
    """Return the steps from one line to the next."""
    steps = [iteration.step for iteration in log.steps]
    gaps = [after - before for before, after in pairwise(steps) if after > before]
    return median(gaps) if gaps else 1


def find_directories(run: RunDir, config: TrainSettings | None, *, logged: Sequence[str] = ()) -> list[SaveDirectory]:
    """Return the directories with checkpoints of the train, each with the reason; none with unknown settings."""
    if config is None:
        return []
    command = TrainCommand(
        words=config.command,
        environment=config.environment,
        directory=find_working_directory(run, config),
        checkpoints=run.checkpoints,
        mounts=config.container.sources if config.container else {},
    )
    return find_save_directories(command, configured=config.progress.checkpoint_directories, logged=logged)


def find_all_directories(run: RunDir, config: TrainSettings) -> list[Path]:
    """Return the directories with checkpoints that the settings, the command and the log name, for a rollback."""
    if is_regular(run.trainer_config):
        return [run.checkpoints]
    logged = read_log_signs(run.main_log, 0, None).saved_paths
    configured = {directory.path for directory in find_directories(run, config)}
    paths = [directory.path for directory in find_directories(run, config, logged=logged)]
    return [path for path in paths if path in configured or _may_be_changed(run, path)]


def _may_be_changed(run: RunDir, path: Path) -> bool:
    """Whether a rollback may move checkpoints in a directory that only the log names: any program writes to the log.

    The directory is this user's, and neither in nor above another train.
    """
    place, root = path.resolve(), run.path.parent.resolve()
    if root.is_relative_to(place):
        return False
    if place.is_relative_to(root):
        train = RunDir(root / place.relative_to(root).parts[0])
        if train.name != run.name and is_regular(train.config):
            return False
    try:
        status = place.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & stat.S_IWOTH


def list_save_directories(run: RunDir, config: TrainSettings | None) -> list[Path]:
    """Return the directories that the trainer saves to; the run directory's own if no other is known."""
    found = [directory.path for directory in find_directories(run, config)]
    return [path for path in found if path != run.checkpoints] or [run.checkpoints]


def find_working_directory(run: RunDir, config: TrainSettings) -> Path:
    """Return where relative paths of the trainer begin; with frozen code, in the copy that the body names."""
    directory = Path(config.setup.directory or run.path)
    if config.setup.freeze == "none":
        return directory
    try:
        lines = read_bounded(run.body, MAX_SETTINGS_BYTES).decode(errors="replace").splitlines()
        changes = [shlex.split(line)[-1] for line in lines if line.startswith("cd -- ")]
    except (OSError, ValueError):
        return directory
    return Path(changes[0]) if changes else directory


def find_train_saves(run: RunDir, settings: TrainSettings) -> list[Save]:
    """Return the checkpoints of a train, the oldest first: complete ones, and those that nothing shows to be partial.

    The directory of the run is listed as it is if it holds no checkpoint of a known layout. Raises OSError.
    """
    if is_regular(run.trainer_config):
        return find_saves(run.checkpoints, embedded=True)
    found = list_checkpoints_in([directory.path for directory in find_directories(run, settings)], MAX_LISTED_SAVES)
    if not found:
        return find_saves(run.checkpoints, embedded=False)
    saves = [
        Save(path=checkpoint.path, at=checkpoint.written, step=checkpoint.step)
        for checkpoint in found
        if not checkpoint.is_partial
    ]
    return sorted(saves, key=lambda save: save.at)
