"""Collect steps, saves and times from the chunks of a log with Megatron's lines."""

import math
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from opsctl.base.tables import read_byte_patterns
from opsctl.telemetry.progress.log_formats import parse_megatron
from opsctl.telemetry.progress.log_summary import UNKNOWN, LogPart, LogStep, LogSummary

MAX_LINE_BYTES = 64 << 10
"""A longer line is a dump of data, and is cut."""
GAP_SEARCH_BYTES = 4096
"""Between two iteration lines, only the first and the last bytes are searched for times."""
STAMP_SEARCH_BYTES = 200
"""A time stands near the beginning of its line."""
MIN_STAMP_BYTES = 19
"""`2026-03-01 12:00:59`; a longer time has fractions of a second."""
MAX_BATCH = 10**15
SAMPLES_A_BIN = 8
"""Lines of a bin of the loss curve whose figures that change slowly are read."""

STAMP = re.compile(rb"20\d\d-[01]\d-[0-3]\d[ T][0-2]\d:[0-5]\d:[0-5]\d(?:[.,]\d{1,6})?")
_PATTERNS = read_byte_patterns("telemetry/progress/log_lines.toml", "megatron")
_WORDS = (b"iteration", b"checkpoint", b"datetime: ")
"""Every line of interest holds one of these words. The search for them takes most of the time."""


class _Gap(NamedTuple):
    """The text after the last iteration line, and before the current line."""

    data: bytes
    begin: int
    end: int

    def tail(self) -> bytes:
        return self.data[max(self.begin, self.end - GAP_SEARCH_BYTES) : self.end]

    def stamps(self) -> list[float]:
        lines = (
            line for line in self.data[self.begin : self.end].split(b"\n") if not _PATTERNS["watchdog"].search(line)
        )
        return [parse_stamp(match[0]) for line in lines if (match := STAMP.search(line))]


class LogReader:
    """Collects a LogSummary from the chunks of a log."""

    def __init__(self, cuts: Sequence[int] | None) -> None:
        self.cuts = cuts
        self.summary = LogSummary()
        self.last_line = b""
        self.step = -1
        self.stall_s = UNKNOWN
        self.evaluated = 0
        self.tail = b""
        """The last text with a time after the last iteration line."""
        self.needs_latest = False
        """The last iteration line waits for the first time after it."""

    @property
    def part(self) -> LogPart:
        return self.summary.parts[-1]

    def feed(self, data: bytes, offset: int) -> tuple[bytes, int]:
        """Take the whole lines of `data`, which begins at `offset`; return the rest and its offset."""
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > MAX_LINE_BYTES:
            cut = len(data)
        self.take(data[:cut], offset)
        return data[cut:], offset + cut

    def take(self, data: bytes, offset: int) -> None:
        """Take `data`, which begins at `offset`, and begin a new part at every cut in `data`."""
        begin = 0
        while self.cuts is not None and len(self.summary.parts) <= len(self.cuts):
            cut = self.cuts[len(self.summary.parts) - 1] - offset
            if cut >= len(data):
                break
            if cut > begin:
                self._take_lines(data[begin:cut])
                begin = cut
            self._new_part()
        self._take_lines(data[begin:] if begin else data)

    def finish(self) -> LogSummary:
        """Return the summary, with an empty part for every cut beyond the end."""
        self._end_part()
        while self.cuts is not None and len(self.summary.parts) <= len(self.cuts):
            self.summary.parts.append(LogPart())
        if self.last_line:
            self.summary.last = parse_megatron(self.last_line.decode(errors="replace"))
        return self.summary

    def _end_part(self) -> None:
        part = self.part
        part.stall_s = self.stall_s
        if stamps := STAMP.findall(self.tail):
            part.last_stamp = parse_stamp(stamps[-1])
            self._set_first_stamp(stamps[0])
        if not math.isnan(part.exit_stamp):
            part.last_stamp = part.exit_stamp
        self.stall_s, self.evaluated = UNKNOWN, 0
        self.tail, self.step, self.needs_latest = b"", -1, False

    def _new_part(self) -> None:
        self._end_part()
        self.summary.parts.append(LogPart())

    def _take_lines(self, data: bytes) -> None:
        """Take every line that holds one of _WORDS; search the text between for times."""
        position = after_iteration = 0
        hits = [data.find(word) for word in _WORDS]
        while (hit := _first_hit(hits)) >= 0:
            start = data.rfind(b"\n", position, hit) + 1 or position
            stop = data.find(b"\n", hit)
            stop = len(data) if stop < 0 else stop
            self._take_gap(data, position, start)
            line = data[start : min(stop, start + MAX_LINE_BYTES)]
            if self._take_line(line, _Gap(data, after_iteration, start)):
                after_iteration = stop
            position = stop
            for number, word in enumerate(_WORDS):
                if 0 <= hits[number] < stop:
                    hits[number] = data.find(word, stop)
        self._take_gap(data, position, len(data))

    def _take_gap(self, data: bytes, begin: int, end: int) -> None:
        """Take the first and the last time in the text between two lines of interest."""
        if end - begin < MIN_STAMP_BYTES:
            return
        if self.needs_latest and (match := STAMP.search(data, begin, min(end, begin + GAP_SEARCH_BYTES))):
            self._set_latest(parse_stamp(match[0]))
        tail = _Gap(data, begin, end).tail()
        if STAMP.search(tail):
            self.tail = tail
        if math.isnan(self.part.first_stamp) and (century := data.find(b"20", begin, end)) >= 0:
            match = STAMP.search(data, century, end)
            self._set_first_stamp(match[0] if match else b"")

    def _set_latest(self, stamp: float) -> None:
        if not math.isnan(stamp):
            self.part.latest[-1] = stamp
        self.needs_latest = False

    def _set_first_stamp(self, text: bytes) -> None:
        if text and math.isnan(self.part.first_stamp):
            self.part.first_stamp = parse_stamp(text)

    def _take_line(self, line: bytes, gap: _Gap) -> bool:
        """Take a line of interest; return whether the line is an iteration line."""
        head = _PATTERNS["step"].search(line)
        if head is not None and (b"elapsed time" in line or b"/" in head[0]):
            if self.cuts is None and int(head[1]) < self.step:
                self._restart(gap)
            self._take_iteration(line, head)
            return True
        if self.cuts is None and len(self.part) and _PATTERNS["restarted"].search(line):
            self._restart(gap)  # first, because the time of this line belongs to the new attempt
        if match := STAMP.search(line):
            self.tail = line
            self._set_first_stamp(match[0])
            if self.needs_latest:
                self._set_latest(parse_stamp(match[0]))
            if _PATTERNS["exited"].search(line):
                self.part.exit_stamp = parse_stamp(match[0])
        self._take_save(line)
        return False

    def _take_save(self, line: bytes) -> None:
        self.evaluated |= b"validation" in line
        if _PATTERNS["saved"].search(line) and math.isnan(self.stall_s):
            self.stall_s = math.inf
        if match := _PATTERNS["stall_s"].search(line):
            self._add_stall(parse_float(match[1]))
        elif match := _PATTERNS["save_ms"].search(line):
            self._add_stall(parse_float(match[1]) / 1000)

    def _add_stall(self, stall_s: float) -> None:
        if math.isfinite(stall_s):
            self.stall_s = stall_s + (self.stall_s if math.isfinite(self.stall_s) else 0.0)

    def _restart(self, gap: _Gap) -> None:
        """Begin a new attempt. The old attempt ended, and the new one began, at the largest leap of the times."""
        stamps = gap.stamps()
        self._new_part()
        old, new = self.summary.parts[-2:]
        if not math.isnan(old.exit_stamp):
            stamps = [old.exit_stamp, *(stamp for stamp in stamps if stamp > old.exit_stamp)][:2]
        if not stamps:
            return
        leaps_s = [0.0, *(after - before for before, after in pairwise(stamps))]
        leap = max(range(len(stamps)), key=leaps_s.__getitem__)
        old.last_stamp = stamps[leap - 1]  # without a leap, the last of them
        new.first_stamp = stamps[leap] if leap else UNKNOWN
        self.tail = gap.tail()

    def _take_iteration(self, line: bytes, head: re.Match[bytes]) -> None:
        step = int(head[1])
        if step == self.step:
            return  # the line was logged twice
        earliest, latest = self._stamp_iteration(line, head)
        step_s = _parse_step_s(line)
        width = self.summary.loss.width
        if SAMPLES_A_BIN * step // width != SAMPLES_A_BIN * self.step // width:
            self._sample_figures(line, step)
        self._add(step, step_s, (earliest, latest), _parse_value(line, b"global batch size:"))
        self._take_figures(line, step)
        self.tail, self.needs_latest = b"", math.isnan(latest)

    def _add(self, step: int, step_s: float, times: tuple[float, float], batch: float) -> None:
        """Add a step that ended between two times, with what the log reports since the step before."""
        self.part.add(
            LogStep(
                step=step,
                step_s=step_s if step_s >= 0 else UNKNOWN,
                earliest=times[0],
                latest=times[1],
                batch=int(batch) if 0 < batch < MAX_BATCH else 0,
                stall_s=self.stall_s,
                evaluated=self.evaluated,
            )
        )
        self.step, self.stall_s, self.evaluated = step, UNKNOWN, 0

    def _stamp_iteration(self, line: bytes, head: re.Match[bytes]) -> tuple[float, float]:
        """Return the earliest and the latest end of the line's steps, nan where unknown."""
        if match := STAMP.search(line, 0, head.start()):
            self.part.has_fractions &= len(match[0]) > MIN_STAMP_BYTES
            self._set_first_stamp(match[0])
            stamp = parse_stamp(match[0])
            return stamp, stamp
        if self.tail and (stamps := STAMP.findall(self.tail)):
            self.part.has_fractions &= len(stamps[-1]) > MIN_STAMP_BYTES
            return parse_stamp(stamps[-1]), UNKNOWN
        return UNKNOWN, UNKNOWN

    def _take_figures(self, line: bytes, step: int) -> None:
        summary = self.summary
        if summary.first is None:
            summary.first = parse_megatron(line.decode(errors="replace"))
        self.last_line = line
        if (at := line.find(b"loss:")) >= 0:
            summary.loss.add(step, _parse_until_bar(line, at + len(b"loss:")))
        if (at := line.find(b"grad norm:")) >= 0:  # of every line: spikes matter
            summary.add_figure("grad_norm", step, _parse_until_bar(line, at + len(b"grad norm:")))

    def _sample_figures(self, line: bytes, step: int) -> None:
        """Add the figures that change slowly, of some lines."""
        tflops = _parse_value(line, b"TFLOPs:")
        if math.isnan(tflops):
            tflops = _parse_value(line, b"throughput per GPU (TFLOP/s/GPU):")
        figures = {
            "tflops": tflops,
            "lr": _parse_value(line, b"learning rate:"),
            "samples_per_s": _parse_value(line, b"samples per second:"),
            "tokens_per_s": _parse_value(line, b"tokens per second:"),
        }
        for name, value in figures.items():
            if not math.isnan(value):
                self.summary.add_figure(name, step, value)


def _first_hit(hits: Sequence[int]) -> int:
    """Return the lowest position, -1 if there is none."""
    first = -1
    for hit in hits:
        if hit >= 0 and (hit < first or first < 0):
            first = hit
    return first


def _parse_step_s(line: bytes) -> float:
    """Parse `elapsed time per iteration (ms): 22306.6`, or `(s): 22.3`, into seconds."""
    step_ms = _parse_value(line, b"elapsed time per iteration (ms):")
    return _parse_value(line, b"elapsed time per iteration (s):") if math.isnan(step_ms) else step_ms / 1000


def _parse_value(line: bytes, name: bytes) -> float:
    at = line.find(name)
    return UNKNOWN if at < 0 else _parse_until_bar(line, at + len(name))


def _parse_until_bar(line: bytes, begin: int) -> float:
    end = line.find(b"|", begin)
    return parse_float(line[begin : end if end > 0 else None])


def parse_float(text: bytes) -> float:
    """Parse a number; nan for any other text."""
    try:
        return float(text)
    except ValueError:
        return UNKNOWN


@lru_cache(maxsize=4096)
def _parse_minute(text: bytes) -> float:
    try:
        return datetime.fromisoformat(text.decode()).timestamp()
    except (ValueError, OverflowError):
        return UNKNOWN


def parse_stamp(text: bytes) -> float:
    """Parse `2026-03-01 12:00:59.123` into seconds since the epoch; nan for an impossible date such as 31 February."""
    fraction = text[20:]
    seconds = int(text[17:19]) + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
    return _parse_minute(text[:16]) + seconds
