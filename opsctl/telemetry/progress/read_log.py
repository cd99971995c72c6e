"""Read a whole log once, from beginning to end, for its steps, saves and times: of any trainer with known lines."""

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from opsctl.base.errors import InputError, cannot_read
from opsctl.state.files import open_regular
from opsctl.telemetry.progress.iteration import Iteration
from opsctl.telemetry.progress.iteration_lines import read_window
from opsctl.telemetry.progress.log_events import ProgressEventKind
from opsctl.telemetry.progress.log_formats import MEGATRON, LineFormat, formats_for, load_epochs
from opsctl.telemetry.progress.log_reader import MIN_STAMP_BYTES, STAMP, STAMP_SEARCH_BYTES, LogReader, parse_stamp
from opsctl.telemetry.progress.log_summary import UNKNOWN, LogSummary
from opsctl.telemetry.progress.signs import find_epochs
from opsctl.telemetry.progress.step_reader import StepReader
from opsctl.telemetry.progress.tracker_log import is_tracker_path, read_tracker_log

DIRECTORY_HINT = "--log takes the log itself, or a directory with TensorBoard files or offline runs of W&B"
CHUNK_BYTES = 4 << 20
SAMPLED_PLACES = 8
SAMPLE_BYTES = 256 << 10
HEAD_BYTES = 1 << 20
_US_STAMP = re.compile(rb"([01]\d)/([0-3]\d)/(20\d\d) ([0-2]\d:[0-5]\d:[0-5]\d)")
"""`05/11/2024 14:02:11`, month first, as Python programs of Hugging Face log."""
_SAVES = frozenset({ProgressEventKind.SAVING, ProgressEventKind.SAVED})
_EVALUATES = (b"alidation", b"valuation", b"eval_loss", b"val_loss")


class ForeignLogReader(LogReader):
    """Collects a LogSummary from the chunks of a log."""

    def __init__(self, cuts: Sequence[int] | None, formats: Sequence[LineFormat]) -> None:
        super().__init__(cuts)
        self.reader = StepReader(formats)
        self.head_step = -1
        """The step of the newest step line, which may still get values from further lines."""
        self.head_earliest = self.head_latest = UNKNOWN
        self.before: tuple[int, float] = (0, UNKNOWN)
        """Step and time of the step line before, in the same part."""
        self.is_restarting = False

    def feed(self, data: bytes, offset: int) -> tuple[bytes, int]:
        return super().feed(data.replace(b"\r", b"\n"), offset)

    def _end_part(self) -> None:
        pending = None if self.is_restarting else self.reader.rest()
        if pending is not None:
            self._add_step(pending)
        super()._end_part()
        self.head_step, self.before = -1, (0, UNKNOWN)

    def _take_lines(self, data: bytes) -> None:
        """Take every line that may state something; search the text between for times."""
        position = 0
        for begin, line in self.reader.find_lines(data):
            self._take_gap(data, position, begin)
            self._take_any_line(line)
            position = begin + len(line)
        self._take_gap(data, position, len(data))

    def _take_any_line(self, line: bytes) -> None:
        facts = self.reader.read(line, is_candidate=True)
        for completed in facts.iterations:
            self._add_step(completed)
        if stamp := find_stamp(line):
            self._take_stamp(stamp)
        if math.isnan(self.stall_s) and any(event.kind in _SAVES for event in facts.events):
            self.stall_s = math.inf
        step = facts.values.get("step")
        if step is not None and step != self.head_step:
            self._begin_step(int(step), stamp)
        elif not facts.values and any(word in line for word in _EVALUATES):
            self.evaluated = 1

    def _take_stamp(self, stamp: bytes) -> None:
        self.part.has_fractions &= len(stamp) > MIN_STAMP_BYTES
        self._set_first_stamp(stamp)
        self._set_latest(parse_stamp(stamp))
        self.tail = stamp

    def _set_latest(self, stamp: float) -> None:
        if self.needs_latest:
            self.head_latest = stamp
        self.needs_latest = False

    def _begin_step(self, step: int, stamp: bytes) -> None:
        if self.cuts is None and step < self.head_step:
            self.is_restarting = True  # the pending step is the first of the new part
            self._new_part()
            self.is_restarting = False
        stamps = [stamp] if stamp else STAMP.findall(self.tail)
        earliest = parse_stamp(stamps[-1]) if stamps else UNKNOWN
        self.head_step, self.head_earliest = step, earliest
        self.head_latest = earliest if stamp else UNKNOWN
        self.needs_latest = not stamp
        self.tail = b""

    def _add_step(self, iteration: Iteration) -> None:
        if iteration.step == self.step:
            return
        step_s = iteration.step_s if iteration.step_s is not None else self._elapsed_step_s(iteration.step)
        self._add(iteration.step, step_s, (self.head_earliest, self.head_latest), iteration.global_batch or 0)
        self.before = (iteration.step, self.head_latest)
        self.summary.take_figures(iteration)

    def _elapsed_step_s(self, step: int) -> float:
        """Return the seconds for one step by the times of two step lines, nan if unknown."""
        before, at = self.before
        return (self.head_latest - at) / (step - before) if step > before else UNKNOWN


def read_summary(
    path: Path, cuts: Sequence[int] | None = None, *, pattern: str = "", follow: bool = False
) -> LogSummary:
    """Read a whole log, or the files of a tracker.

    `cuts` are the offsets at which the attempts began, in rising order. The summary then has one part for the text
    before the first offset, and one part for each offset. Without `cuts`, a new part begins where a trainer loads a
    checkpoint, or where the step goes back. `pattern` is that of TRAIN.toml. A link is read only with `follow`, for a
    log that a person has named.

    Raises RunDirError for a log without read permission, InputError for a path that is not a file.
    """
    try:
        if cuts is None and is_tracker_path(path) and (summary := read_tracker_log(path, follow=follow)).lines:
            return summary
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file", hint=DIRECTORY_HINT)
        reader = _choose_reader(path, cuts, pattern, follow=follow)
        with _open(path, follow=follow) as file:
            offset, rest = 0, b""
            while data := file.read(CHUNK_BYTES):
                rest, offset = reader.feed(rest + data, offset)
            reader.take(rest, offset)
            return reader.finish()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: truncated, or not a gzip file", hint=f"check with: gzip -t {path}") from error
    except OSError as error:
        raise cannot_read(path, error) from error


def _open(path: Path, *, follow: bool) -> IO[bytes]:
    """Open a log as logrotate leaves it: compressed or not."""
    file = os.fdopen(open_regular(path, follow=follow), "rb")
    return gzip.open(file) if path.suffix == ".gz" else file  # type: ignore[return-value]  # it reads alike


def _choose_reader(path: Path, cuts: Sequence[int] | None, pattern: str, *, follow: bool) -> LogReader:
    """Return the reader for the formats in samples of a log. A log with lines of Megatron is read as Megatron's."""
    finder, has_steps, has_epochs = StepReader(formats_for(pattern)), False, False
    with _open(path, follow=follow) as file:
        for sample in _read_samples(file, is_compressed=path.suffix == ".gz"):
            for _, line in finder.find_lines(sample):
                has_steps |= "step" in finder.read(line, is_candidate=True).values
            has_epochs = has_epochs or bool(not has_steps and find_epochs(sample))
    if has_epochs and not has_steps:
        reader = ForeignLogReader(cuts, (load_epochs(),))
        reader.summary.counts_epochs = True
        return reader
    is_foreign = bool(finder.known) and all(line_format.name != MEGATRON for line_format in finder.known)
    return ForeignLogReader(cuts, finder.known) if is_foreign else LogReader(cuts)


def _read_samples(file: IO[bytes], *, is_compressed: bool) -> Iterator[bytes]:
    """Yield parts of an open log, at even distances; of a compressed log only the beginning."""
    if is_compressed:
        yield file.read(CHUNK_BYTES)
        return
    size = os.fstat(file.fileno()).st_size
    places = {0: HEAD_BYTES} | {size * n // SAMPLED_PLACES: SAMPLE_BYTES for n in range(1, SAMPLED_PLACES)}
    for at, length in sorted(places.items()):
        yield read_window(file.fileno(), at, min(size, at + length))


def find_stamp(line: bytes) -> bytes:
    """Return the first time near the beginning of a line as `2026-03-01 12:00:59`, empty without a time."""
    if match := STAMP.search(line, 0, STAMP_SEARCH_BYTES):
        return match[0]
    if match := _US_STAMP.search(line, 0, STAMP_SEARCH_BYTES):
        return b"%b-%b-%b %b" % (match[3], match[1], match[2], match[4])
    return b""
