"""What a log says of steps, saves and times, kept small: of each iteration line some 45 bytes, a sixth of it or less.

Times are seconds since the epoch as this machine's zone would have it, for logs tell no zone.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from opsctl.telemetry.progress.bounded_curve import BoundedCurve, ValueSample
from opsctl.telemetry.progress.iteration_lines import Iteration

NOTHING = math.nan


class LogStep(NamedTuple):
    """One iteration line, with what was told since the one before it."""

    step: int
    seconds: float
    """Of each step since the line before; nan if it does not say."""
    low: float
    """The latest time told before its end, or nan: it ended then or later."""
    high: float
    """The first time told after it, or nan."""
    batch: int
    """Samples of a step; 0 if it does not say."""
    stall: float
    """Seconds for which saves since the line before held up training; nan if there were none, infinite if there were
    and nobody says how long they took."""
    evaluated: int
    """Whether there was an evaluation since the line before."""

    @property
    def is_special(self) -> bool:
        """Whether there was anything but steps since the line before."""
        return self.evaluated != 0 or self.stall == self.stall  # nan alone differs from itself


_COLUMNS = (
    ("step", "q"),
    ("seconds", "d"),
    ("low", "d"),
    ("high", "d"),
    ("batch", "q"),
    ("stall", "d"),
    ("evaluated", "b"),
)


@dataclass(slots=True)
class LogPart:
    """The lines of one attempt, in columns, and what is told before the first and after the last."""

    columns: tuple[array[float], ...] = field(default_factory=lambda: tuple(array(code) for _, code in _COLUMNS))
    first_stamp: float = NOTHING
    last_stamp: float = NOTHING
    stall: float = NOTHING
    """As `Told.stall`, after the last line."""
    left: float = NOTHING
    """When its trainer said that it leaves."""
    fine: bool = True
    """Whether its times are told in fractions of a second."""

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[LogStep]:
        return map(LogStep._make, zip(*self.columns, strict=True))

    def add(self, log_step: LogStep) -> None:
        steps, seconds, low, high, batch, stall, evaluated = self.columns
        steps.append(log_step[0])
        seconds.append(log_step[1])
        low.append(log_step[2])
        high.append(log_step[3])
        batch.append(log_step[4])
        stall.append(log_step[5])
        evaluated.append(log_step[6])

    def join(self, later: LogPart) -> None:
        """Take in what the same attempt told afterwards, in another file or after another start of its trainer."""
        if not len(later) and math.isnan(later.last_stamp) and math.isnan(later.stall):
            return
        for column, more in zip(self.columns, later.columns, strict=True):
            column.extend(more)
        if math.isnan(self.first_stamp):
            self.first_stamp = later.first_stamp
        self.last_stamp, self.stall, self.fine = later.last_stamp, later.stall, self.fine and later.fine


@dataclass(slots=True)
class LogSummary:
    """What a log tells: one part for each attempt."""

    parts: list[LogPart] = field(default_factory=lambda: [LogPart()])
    loss: BoundedCurve = field(default_factory=BoundedCurve)
    tflops: ValueSample = field(default_factory=ValueSample)
    first: Iteration | None = None
    last: Iteration | None = None

    @property
    def lines(self) -> int:
        return sum(map(len, self.parts))
