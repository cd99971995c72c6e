"""Reads a whole log, once from its beginning to its end, for all that it says of steps, saves and times."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import IO

from opsctl.errors import InputError, cannot_read
from opsctl.telemetry.progress.iteration_lines import parse
from opsctl.telemetry.progress.log_summary import NOTHING, LogPart, LogStep, LogSummary

CHUNK = 4 << 20
LONGEST = 64 << 10
"""Bytes without a line's end: what is longer is a dump of something, and is cut."""
NEAR = 4096
"""Of what stands between two iteration lines, so much is searched for times at either end."""

_STAMP = re.compile(rb"20\d\d-[01]\d-[0-3]\d[ T][0-2]\d:[0-5]\d:[0-5]\d(?:[.,]\d{1,6})?")
_STEP = re.compile(rb"iteration\s+(\d{1,15})\s*(?:/\s*\d{1,15}\s*)?\|")
_SAVE_MS = re.compile(rb"save-checkpoint[ .]*: *\(?([\d.]+)")
_STALL_S = re.compile(rb"saved checkpoint .*stood still for ([\d.]+) s")
_SAVED = re.compile(rb"(?:saving checkpoint|saved checkpoint|Saving model checkpoint)")
_RESTARTED = re.compile(
    rb"loading checkpoint from|resumed from checkpoint|no checkpoint in .*starting from|\[before the start of training"
)
_LEFT = re.compile(rb"\[exiting program|\[after training is done")
_WATCHED = re.compile(rb"PULSE:|\*\*\*ALERT|is scheduled to start in|is running for|is waiting ")
"""Lines of a watchdog in a main log, as in the chronicles: they go on when nothing runs."""
_WORDS = (b"iteration", b"checkpoint", b"datetime: ")
"""Every line that matters holds one of them; finding those is what most of the time goes to."""


def read_summary(path: Path, cuts: Sequence[int] | None = None) -> LogSummary:
    """Read a log. With `cuts`, offsets in rising order at which the attempts began, there are as many parts and one
    more,
    that of what stands before; without, a new part begins where a trainer says that it loads a checkpoint, or where
    the step goes back. Raises RunDirError for a log that may not be read, InputError for what is no file.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file", hint="--log wants the log itself")
        with _open(path) as file:
            reader = _LogReader(cuts)
            offset, rest = 0, b""
            while data := file.read(CHUNK):
                rest, offset = reader.feed(rest + data, offset)
            reader.take(rest, offset)
            return reader.done()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: is cut short, or not a gzip file", hint=f"gzip -t {path} says more") from error
    except OSError as error:
        raise cannot_read(path, error) from error


def _open(path: Path) -> IO[bytes]:
    """As logrotate leaves it: packed, or not."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]  # it reads alike


class _LogReader:
    def __init__(self, cuts: Sequence[int] | None) -> None:
        self.cuts = cuts
        self.told = LogSummary()
        self.last_line = b""
        self.step = -1
        self.stall = NOTHING
        self.evaluated = 0
        self.tail = b""
        """The end of what stood after the last iteration line, in the chunks before."""
        self.needs_high = False

    def feed(self, data: bytes, offset: int) -> tuple[bytes, int]:
        """Take the whole lines of `data`, which begins at `offset`; what is left, and where it begins."""
        cut = data.rfind(b"\n") + 1
        if not cut:
            cut = len(data) if len(data) > LONGEST else 0
        self.take(data[:cut], offset)
        return data[cut:], offset + cut

    def take(self, data: bytes, offset: int) -> None:
        begin = 0
        while self.cuts is not None and len(self.told.parts) <= len(self.cuts):
            at = self.cuts[len(self.told.parts) - 1] - offset
            if at >= len(data):
                break
            if at > begin:
                self._lines(data[begin:at])
                begin = at
            self._new_part()
        self._lines(data[begin:] if begin else data)

    def done(self) -> LogSummary:
        self._end_part()
        while self.cuts is not None and len(self.told.parts) <= len(self.cuts):
            self.told.parts.append(LogPart())
        self.told.last = parse(self.last_line.decode(errors="replace")) if self.last_line else None
        return self.told

    def _end_part(self) -> None:
        part = self.told.parts[-1]
        part.stall = self.stall
        if found := _STAMP.findall(self.tail):
            part.last_stamp = _time(found[-1])
            self._first_stamp(found[0])
        part.last_stamp = part.left if not math.isnan(part.left) else part.last_stamp
        self.stall, self.evaluated, self.tail, self.step, self.needs_high = NOTHING, 0, b"", -1, False

    def _new_part(self) -> None:
        self._end_part()
        self.told.parts.append(LogPart())

    def _lines(self, data: bytes) -> None:
        position = literal = 0
        steps, saves, times = (data.find(word) for word in _WORDS)
        while True:
            number = steps
            if saves >= 0 and (saves < number or number < 0):
                number = saves
            if times >= 0 and (times < number or number < 0):
                number = times
            if number < 0:
                break
            start = data.rfind(b"\n", position, number) + 1 or position
            stop = data.find(b"\n", number)
            stop = len(data) if stop < 0 else stop
            self._gap(data, position, start)
            if self._line(data[start : min(stop, start + LONGEST)], (data, literal, start)):
                literal = stop
            position = stop
            steps, saves, times = (
                data.find(word, stop) if 0 <= at < stop else at
                for word, at in zip(_WORDS, (steps, saves, times), strict=True)
            )
        self._gap(data, position, len(data))

    def _gap(self, data: bytes, begin: int, end: int) -> None:
        """What stands between lines that matter: only its times do, the first and the last."""
        if end - begin < 19:
            return
        if self.needs_high and (match := _STAMP.search(data, begin, min(end, begin + NEAR))):
            self._high(_time(match[0]))
        near = data[max(begin, end - NEAR) : end]
        if _STAMP.search(near):
            self.tail = near
        if math.isnan(self.told.parts[-1].first_stamp) and (match := _STAMP.search(data, begin, end)):
            self._first_stamp(match[0])

    def _high(self, at: float) -> None:
        if not math.isnan(at):
            self.told.parts[-1].columns[3][-1] = at
        self.needs_high = False

    def _first_stamp(self, text: bytes) -> None:
        part = self.told.parts[-1]
        if math.isnan(part.first_stamp):
            part.first_stamp = _time(text)

    def _line(self, line: bytes, between: tuple[bytes, int, int]) -> bool:
        """Take in a line that may matter; `between` is where what stands since the last iteration line begins and ends.
        Whether it is one."""
        head = _STEP.search(line)
        if head is not None and (b"elapsed time" in line or b"/" in head[0]):
            if self.cuts is None and int(head[1]) < self.step:
                self._restart(between)
            self._iteration(line, head)
            return True
        if self.cuts is None and len(self.told.parts[-1]) and _RESTARTED.search(line):
            self._restart(between)  # first, for its time is the new attempt's
        if match := _STAMP.search(line):
            self.tail = line
            self._first_stamp(match[0])
            if self.needs_high:
                self._high(_time(match[0]))
            if _LEFT.search(line):
                self.told.parts[-1].left = _time(match[0])
        self._save(line)
        return False

    def _save(self, line: bytes) -> None:
        self.evaluated |= b"validation" in line
        if _SAVED.search(line):
            self.stall = math.inf if math.isnan(self.stall) else self.stall
        if match := _STALL_S.search(line):
            self._stalled(float_of(match[1]))
        elif match := _SAVE_MS.search(line):
            self._stalled(float_of(match[1]) / 1000)

    def _stalled(self, seconds: float) -> None:
        if math.isfinite(seconds):
            self.stall = seconds + (self.stall if math.isfinite(self.stall) else 0.0)

    def _restart(self, place: tuple[bytes, int, int]) -> None:
        """A new attempt begins. Where the times between leap the most, there was none."""
        data, begin, end = place
        lines = (line for line in data[begin:end].split(b"\n") if not _WATCHED.search(line))
        stamps = [_time(match[0]) for line in lines if (match := _STAMP.search(line))]
        self._new_part()
        old, new = self.told.parts[-2:]
        if not math.isnan(old.left):
            stamps = [old.left, *(at for at in stamps if at > old.left)][:2]
        if stamps:
            leap = max(range(len(stamps)), key=lambda at: stamps[at] - stamps[at - 1] if at else 0.0)
            old.last_stamp = stamps[leap - 1] if leap else stamps[-1]
            new.first_stamp = stamps[leap] if leap else NOTHING
            self.tail = data[max(begin, end - NEAR) : end]

    def _iteration(self, line: bytes, head: re.Match[bytes]) -> None:
        step = int(head[1])
        if step == self.step:
            return  # said twice
        part, low, high = self.told.parts[-1], NOTHING, NOTHING
        if own := _STAMP.search(line, 0, head.start()):
            low = high = _time(own[0])
            part.fine &= len(own[0]) > 19
            self._first_stamp(own[0])
        elif self.tail and (found := _STAMP.findall(self.tail)):
            low = _time(found[-1])
            part.fine &= len(found[-1]) > 19
        seconds = _seconds(line)
        batch = _value(line, b"global batch size:")
        part.add(LogStep(step, seconds if seconds >= 0 else NOTHING, low, high,
                      int(batch) if 0 < batch < 1e15 else 0, self.stall, self.evaluated))  # fmt: skip
        self._figures(line, step)
        self.step, self.stall, self.evaluated, self.tail = step, NOTHING, 0, b""
        self.needs_high = math.isnan(high)

    def _figures(self, line: bytes, step: int) -> None:
        summary = self.told
        if summary.first is None:
            summary.first = parse(line.decode(errors="replace"))
        self.last_line = line
        if (at := line.find(b"loss:")) >= 0:
            summary.loss.add(step, _until_bar(line, at + 5))
        if summary.tflops.is_next():
            tflops = _value(line, b"TFLOPs:")
            summary.tflops.add(_value(line, b"throughput per GPU (TFLOP/s/GPU):") if math.isnan(tflops) else tflops)


def _seconds(line: bytes) -> float:
    """`elapsed time per iteration (ms): 22306.6`, or in s."""
    at = line.find(b"elapsed time per iteration (")
    if at < 0:
        return NOTHING
    in_ms = line[at + 28 : at + 30] == b"ms"
    value = _until_bar(line, line.find(b":", at) + 1)
    return value / 1000 if in_ms else value


def _value(line: bytes, name: bytes) -> float:
    at = line.find(name)
    return NOTHING if at < 0 else _until_bar(line, at + len(name))


def _until_bar(line: bytes, begin: int) -> float:
    end = line.find(b"|", begin)
    return float_of(line[begin : end if end > 0 else None])


def float_of(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return NOTHING


@lru_cache(maxsize=4096)
def _minute(text: bytes) -> float:
    try:
        return datetime.fromisoformat(text.decode()).timestamp()
    except (ValueError, OverflowError):
        return NOTHING


def _time(text: bytes) -> float:
    """Seconds since the epoch of `2026-03-01 12:00:59.123`; nan for what is no time, such as 31 February."""
    fraction = text[20:]
    seconds = int(text[17:19]) + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
    return _minute(text[:16]) + seconds
