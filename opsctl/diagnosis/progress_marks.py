"""Find where the last progress of a training stands in its log: what stands before is history, not the cause."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from opsctl.telemetry.progress.log_events import ProgressEventKind
from opsctl.telemetry.progress.log_formats import formats_for
from opsctl.telemetry.progress.signs import iterate_epochs
from opsctl.telemetry.progress.step_reader import StepReader

WINDOW_BYTES = 512 << 10
MAX_CANDIDATE_LINES = 25_000
"""Lines with the words of a format that are read before a log counts as one without progress: 3 s."""
_SAVE_NUMBER = re.compile(rb"(?i)(?:step|iter\w*|epoch|checkpoint|ckpt|updates?)\D{0,3}(\d{1,12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMark:
    """A line that shows progress. Lines of one kind with the same key show the same progress: every rank may log it."""

    offset: int
    kind: str
    """`step`, `values` without a step, `save` or `epoch`."""
    key: bytes
    step: int | None = None


@dataclass(slots=True)
class LastProgress:
    """The last progress of each kind. Feed the parts of a log, the last part first."""

    step: int | None = None
    """The last step."""
    boundaries: dict[str, int] = field(default_factory=dict)
    """By kind the offset of the last line before those of the last key: a rank may fail while others log that step."""
    _last: dict[str, bytes] = field(default_factory=dict)
    _lines_left: int = MAX_CANDIDATE_LINES

    def feed(self, data: bytes, at: int, pattern: str) -> None:
        """Search a part of a log that begins at `at`, in windows from its end until one shows progress."""
        end = len(data)
        while end > 0 and self._lines_left > 0 and not self.boundaries:
            begin = data.rfind(b"\n", 0, max(0, end - WINDOW_BYTES)) + 1
            self.feed_window(data[begin:end], at + begin, pattern)
            end = begin

    def feed_window(self, data: bytes, at: int, pattern: str) -> None:
        """Take the last progress of each kind in a part of a log that begins at `at`."""
        self._lines_left -= sum(1 for _ in StepReader(formats_for(pattern)).find_lines(data))
        for mark in reversed(list(find_marks(data, at, pattern))):
            if mark.step is not None and self.step is None:
                self.step = mark.step
            if self._last.setdefault(mark.kind, mark.key) != mark.key:
                self.boundaries.setdefault(mark.kind, mark.offset)

    def find_boundary(self) -> int | None:
        """Return the offset before which everything is history; None without progress."""
        return max(self.boundaries.values(), default=None)


def find_advance(data: bytes, pattern: str) -> int:
    """Return the length of the part of a log behind which the training went on; 0 without progress.

    The part ends where the steps go back: a launcher has started the ranks again behind a failure.
    """
    highest, end = -1, len(data)
    for mark in find_marks(data, 0, pattern):
        if mark.step is not None and mark.step < highest:
            end = mark.offset
            break
        highest = max(highest, mark.step or 0)
    progress = LastProgress()
    progress.feed_window(data[:end], 0, pattern)
    return min(progress.boundaries.values(), default=0)


def find_marks(data: bytes, at: int, pattern: str) -> Iterator[ProgressMark]:
    """Yield the lines of a part of a log, which begins at `at`, that show progress. `pattern` is that of TRAIN.toml."""
    reader = StepReader(formats_for(pattern))
    data = data.replace(b"\r", b"\n")
    marks = [mark for offset, line in reader.find_lines(data) if (mark := _find_mark(reader, at + offset, line))]
    marks += [
        ProgressMark(offset=at + offset, kind="epoch", key=b"%d" % int(epoch))
        for offset, epoch, _ in iterate_epochs(data)
    ]
    yield from sorted(marks, key=lambda mark: mark.offset)


def _find_mark(reader: StepReader, offset: int, line: bytes) -> ProgressMark | None:
    reader.writer = None  # any rank's step is progress
    facts = reader.read(line, is_candidate=True)
    if (step := facts.values.get("step")) is not None:
        return ProgressMark(offset=offset, kind="step", key=b"%d" % int(step), step=int(step))
    if facts.values:
        return ProgressMark(offset=offset, kind="values", key=line)
    is_save = any(event.kind is ProgressEventKind.SAVED for event in facts.events)
    number = _SAVE_NUMBER.search(line) if is_save else None
    return ProgressMark(offset=offset, kind="save", key=number[1]) if number else None
