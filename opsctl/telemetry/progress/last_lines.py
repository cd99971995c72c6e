"""What the last lines of an attempt say about the end of the training, by the patterns of log_events.toml."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.tables import read_patterns
from opsctl.state.files import read_range, read_size_bytes
from opsctl.telemetry.logs.log_lines import blank_own_lines
from opsctl.telemetry.progress.log_events import ProgressEventKind, parse_event
from opsctl.telemetry.progress.log_formats import formats_for
from opsctl.telemetry.progress.step_reader import StepReader

MAX_READ_BYTES = 1 << 16
MAX_END_BYTES = 1 << 20
MAX_LINE_CHARS = 2000
MAX_FAILED_LINES = 200
"""Lines at the end of a log that show a failure at the end; earlier ones may be those of a start."""
UNFINISHED = frozenset({ProgressEventKind.EXITING, ProgressEventKind.SIGNALLED})
"""The trainer stops early, and the next task goes on."""
PATTERNS = read_patterns("telemetry/progress/log_lines.toml", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLines:
    """The lines that say whether the training is over; empty if there is none."""

    finished: str = ""
    unfinished: str = ""
    failed: str = ""
    """The newest line of a program that failed, after the last step."""
    epochs_left: str = ""
    """The newest line that names an epoch, if it is not the last epoch."""
    counts_in_epoch: bool = False
    """Whether the newest step is that of a progress bar of one epoch: its last step need not end the training."""


def read_last_lines(log: Path, begin: int, end: int | None = None, *, pattern: str = "") -> LastLines:
    """Return what a log says at its end, between two offsets. Raises nothing."""
    return parse_last_lines(read_part(log, begin, end, MAX_READ_BYTES).decode(errors="replace"), pattern)


def read_end(log: Path, begin: int, end: int | None = None) -> list[str]:
    """Return the last lines of a log between two offsets, within MAX_END_BYTES. Raises nothing."""
    return re.split(r"[\r\n]+", read_part(log, begin, end, MAX_END_BYTES).decode(errors="replace"))


def read_part(log: Path, begin: int, end: int | None, max_bytes: int) -> bytes:
    """Return the end of a part of a log, `max_bytes` at most, without what opsctl says; empty if it cannot be read."""
    size = read_size_bytes(log)
    end = size if end is None else min(end, size)
    start = max(begin if begin <= size else 0, end - max_bytes)  # beyond the end: another log has replaced this log
    try:
        return blank_own_lines(read_range(log, start, max(0, end - start))[0])
    except OSError:
        return b""


def find_usage(log: Path, begin: int, end: int | None = None) -> str:
    """Return the first line of a help text at the beginning of an attempt's log; empty without one. Raises nothing."""
    head_end = begin + MAX_READ_BYTES
    head = read_part(log, begin, head_end if end is None else min(end, head_end), MAX_READ_BYTES)
    match = PATTERNS["usage"].search(head.decode(errors="replace"))
    return " ".join(match[1].split())[:MAX_LINE_CHARS] if match else ""


def parse_last_lines(text: str, pattern: str = "") -> LastLines:
    """Return what a text says. A progress bar is separated from its next state by a carriage return."""
    finished = unfinished = failed = ""
    counts_in_epoch = False
    steps = StepReader(formats_for(pattern))
    lines = [line.strip()[-MAX_LINE_CHARS:] for line in re.split(r"[\r\n]+", text)]
    late, has_ranks = len(lines) - MAX_FAILED_LINES, any(map(PATTERNS["from_rank"].match, lines))
    for number, line in enumerate(lines):
        event = parse_event(line)
        if event and event.kind is ProgressEventKind.FINISHED:
            finished, failed = line, ""
        elif event and event.kind in UNFINISHED:
            unfinished = line
        elif steps.read(line.encode()).values.get("step") is not None:
            failed = ""  # the program was started again
            counts_in_epoch = PATTERNS["epoch_bar"].match(line) is not None
        elif has_ranks and not PATTERNS["from_rank"].match(line):
            continue  # of the guard, or of Slurm's step, whose exit code is known
        elif number > late and (is_failure(lines[number - 1], line) or (failed and PATTERNS["exception"].search(line))):
            failed = line
    return LastLines(
        finished=finished,
        unfinished=unfinished,
        failed=failed,
        epochs_left=find_epochs_left(lines),
        counts_in_epoch=counts_in_epoch,
    )


def is_failure(before: str, line: str) -> bool:
    """Return whether a line shows that a program failed. Python ignores exceptions of objects that it removes."""
    return PATTERNS["failed"].search(line) is not None and "Exception ignored in" not in before


def find_epochs_left(lines: Sequence[str]) -> str:
    """Return the newest line that names an epoch, if epochs are left; some trainers count epochs from 0."""
    named = [(match, line) for line in lines if (match := PATTERNS["epoch"].search(line))]
    if not named:
        return ""
    match, line = named[-1]
    first = min(int(match[1]) for match, _ in named)
    epoch, epochs = int(match[1]), int(match[2])
    return line if epoch + (first == 0) < epochs else ""
