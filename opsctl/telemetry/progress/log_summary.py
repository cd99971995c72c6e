"""Steps, saves and times of a log, kept small: about 45 bytes for each iteration line, at most a sixth of its length.

Logs do not name their time zone. Times are seconds since the epoch, read in the zone of this machine.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opsctl.telemetry.progress.bounded_curve import BoundedCurve
from opsctl.telemetry.progress.iteration import Iteration

UNKNOWN = math.nan
CURVES = ("grad_norm", "lr", "tokens_per_s", "samples_per_s", "tflops")
"""Figures of Iteration that are kept as curves, beside the loss."""


class LogStep(NamedTuple):
    """One iteration line, and what the log reports between the line before and this line."""

    step: int
    step_s: float
    """Seconds for each step since the line before; nan if unknown."""
    earliest: float
    """The last time in the log before the line, or nan. The steps ended then or later."""
    latest: float
    """The first time in the log after the line, or nan. The steps ended then or earlier."""
    batch: int
    """Samples in a step; 0 if unknown."""
    stall_s: float
    """Seconds for which saves held up training; nan without a save, infinite for a save of unknown length."""
    evaluated: int
    """1 if there was an evaluation, else 0."""

    @property
    def is_special(self) -> bool:
        """Whether there was a save or an evaluation."""
        return self.evaluated != 0 or not math.isnan(self.stall_s)


@dataclass(slots=True)
class LogPart:
    """The lines of one attempt, in columns, and the times before the first line and after the last line."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    step_seconds: array[float] = field(default_factory=lambda: array("d"))
    earliest: array[float] = field(default_factory=lambda: array("d"))
    latest: array[float] = field(default_factory=lambda: array("d"))
    batches: array[int] = field(default_factory=lambda: array("q"))
    stalls_s: array[float] = field(default_factory=lambda: array("d"))
    evaluated: array[int] = field(default_factory=lambda: array("b"))
    first_stamp: float = UNKNOWN
    last_stamp: float = UNKNOWN
    stall_s: float = UNKNOWN
    """As `LogStep.stall_s`, after the last line."""
    exit_stamp: float = UNKNOWN
    """When the trainer logged its exit."""
    has_fractions: bool = True
    """Whether the times in the log have fractions of a second."""

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[LogStep]:
        return map(LogStep._make, zip(*self.columns, strict=True))

    @property
    def columns(self) -> tuple[array[Any], ...]:
        """One array for each field of LogStep, in the same order."""
        beginning = (self.steps, self.step_seconds, self.earliest, self.latest)
        return (*beginning, self.batches, self.stalls_s, self.evaluated)

    def add(self, log_step: LogStep) -> None:
        for column, value in zip(self.columns, log_step, strict=True):
            column.append(value)

    def join(self, later: LogPart) -> None:
        """Append a later part of the same attempt, from another file or another start of the trainer."""
        if not len(later) and math.isnan(later.last_stamp) and math.isnan(later.stall_s):
            return
        for column, more in zip(self.columns, later.columns, strict=True):
            column.extend(more)
        if math.isnan(self.first_stamp):
            self.first_stamp = later.first_stamp
        self.last_stamp = later.last_stamp
        self.stall_s = later.stall_s
        self.has_fractions = self.has_fractions and later.has_fractions


@dataclass(slots=True)
class LogSummary:
    """A log, with one part for each attempt."""

    parts: list[LogPart] = field(default_factory=lambda: [LogPart()])
    loss: BoundedCurve = field(default_factory=BoundedCurve)
    curves: dict[str, BoundedCurve] = field(default_factory=dict)
    """Further figures over the steps, by the name of their field in Iteration; without figures that the log lacks."""
    counts_epochs: bool = False
    """Whether the log shows epochs and no steps: then a step is one of EPOCH_PARTS of an epoch."""
    first: Iteration | None = None
    last: Iteration | None = None

    @property
    def lines(self) -> int:
        return sum(map(len, self.parts))

    def take_figures(self, iteration: Iteration) -> None:
        """Add the figures of a line to the curves."""
        self.first, self.last = self.first or iteration, iteration
        if iteration.loss is not None:
            self.loss.add(iteration.step, iteration.loss)
        for name in CURVES:
            value = getattr(iteration, name)
            if value is not None:
                self.add_figure(name, iteration.step, value)

    def add_figure(self, name: str, step: int, value: float) -> None:
        if name not in self.curves:
            self.curves[name] = BoundedCurve()
        self.curves[name].add(step, value)
