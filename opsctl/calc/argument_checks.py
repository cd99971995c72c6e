"""Check figures, and report all bad figures in one error."""

import math
from collections.abc import Iterable, Iterator

from opsctl.base.errors import InputError

MAX_FIGURE = 1e30
"""No real figure is above, or below its inverse. Products of such figures cannot overflow."""

_UNITS = (("gb_s", "GB/s"), ("gb", "(GB)"), ("s", "(s)"), ("h", "(h)"))
"""Endings of names and their units."""


def refuse(subject: str, problems: Iterable[str], *, hint: str | None = None) -> None:
    """Raise one InputError with all `problems`, or return if there are none."""
    lines = list(problems)
    if lines:
        count = f"{len(lines)} problem{'s' if len(lines) != 1 else ''}"
        raise InputError(f"{subject}: {count}\n" + "\n".join(f"  {line}" for line in lines), hint=hint)


def not_positive(**values: float | None) -> Iterator[str]:
    """Yield a line for every value that is not a finite number above 0; None is a value that is not given."""
    for name, value in values.items():
        if value is None:
            continue
        if not (math.isfinite(value) and value > 0):
            yield f"{_format_name(name)} is {value:g}, needs to be above 0"
        elif not 1 / MAX_FIGURE <= value <= MAX_FIGURE:
            yield f"{_format_name(name)} is {value:g}, needs to be between {1 / MAX_FIGURE:g} and {MAX_FIGURE:g}"


def negative(**values: float | None) -> Iterator[str]:
    """Yield a line for every value that is not a finite number of 0 or more; None is a value that is not given."""
    for name, value in values.items():
        if value is None:
            continue
        if not (math.isfinite(value) and value >= 0):
            yield f"{_format_name(name)} is {value:g}, needs to be 0 or more"
        elif value > MAX_FIGURE:
            yield f"{_format_name(name)} is {value:g}, needs to be at most {MAX_FIGURE:g}"


def not_share(**values: float) -> Iterator[str]:
    """Yield a line for every value that is not between 0 and 1."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            yield f"{_format_name(name)} is {value:g}, needs to be between 0 and 1"


def _format_name(name: str) -> str:
    """Return a name in words, with its unit in brackets."""
    for ending, unit in _UNITS:
        if name == ending or name.endswith(f"_{ending}"):
            return f"{name.removesuffix(ending).replace('_', ' ')}{unit}"
    return name.replace("_", " ")
