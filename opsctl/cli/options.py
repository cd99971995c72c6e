"""Options that several commands share, and their types."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from opsctl.base.units import MAX_DURATION, UNITS_S, convert_duration, format_duration, parse_duration, parse_time
from opsctl.host.system import SystemClock


class Since(click.ParamType):  # type: ignore[type-arg]  # click is generic only in its newest versions
    """The start of a period: a date, a local time, or how long ago (`3d`); the command gets an aware datetime."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        clock = ctx.obj.clock if ctx is not None and ctx.obj is not None else SystemClock()
        try:
            return parse_time(str(value), clock.now())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType):  # type: ignore[type-arg]  # click is generic only in its newest versions
    """A local time or a time with a zone, also in the future; the command gets an aware datetime in UTC."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(str(value)).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r:.40} is not a time, such as '2026-03-01 12:00'", param, ctx)


class Duration(click.ParamType):  # type: ignore[type-arg]  # as above: generic only in newest
    """A duration such as `90s`, `10m`, `1h30m` or `2d`, within bounds; the command gets a timedelta."""

    name = "duration"

    def __init__(self, *, minimum: timedelta = timedelta(0), maximum: timedelta = MAX_DURATION) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            duration = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if duration < self.minimum:
            self.fail(f"{value!r:.40} is less than {format_duration(self.minimum)}", param, ctx)
        if duration > self.maximum:
            self.fail(f"{value!r:.40} is more than {format_duration(self.maximum)}", param, ctx)
        return duration


class Amount(click.ParamType):  # type: ignore[type-arg]  # as above: generic only in newest
    """A duration such as `90m`, or a bare number in `unit`; the command gets a number of units within bounds."""

    def __init__(self, unit: str, *, minimum: float = -math.inf, maximum: float = math.inf) -> None:
        self.name = unit
        self.minimum = minimum
        self.maximum = maximum

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            amount = float(str(value))
        except ValueError:
            try:
                amount = convert_duration(str(value), UNITS_S[self.name])
            except ValueError as error:
                self.fail(f"{error}, nor a number of {self.name}", param, ctx)
        if amount < self.minimum or amount > self.maximum:
            self.fail(f"{value!r:.40} is not within {self.minimum:g} and {self.maximum:g} {self.name}", param, ctx)
        return amount


SECONDS, MINUTES, HOURS, DAYS = map(Amount, UNITS_S)


def _refuse_blank(_context: click.Context, _param: click.Parameter, text: str) -> str:
    if not text.strip():
        raise click.BadParameter("is empty; a person who reads it later wants to know why")
    return text


required_reason = click.option(
    "--reason", required=True, callback=_refuse_blank, help="Reason, recorded and shown with the change."
)
reason_option = click.option("--reason", default="", help="Reason, recorded in the journal.")
allow_option = click.option(
    "--allow",
    metavar="CHECK",
    multiple=True,
    help="Turn errors of CHECK into journalled warnings; repeatable.",
)
INTERVAL = Duration(minimum=timedelta(seconds=1))
"""Time between two refreshes, or a time limit: at least a second."""


def list_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files of `paths`, and those inside its directories."""
    entries: list[Path] = []
    for path in paths:
        entries += sorted(path.iterdir()) if path.is_dir() else [path]
    return [entry for entry in entries if entry.is_file()]
