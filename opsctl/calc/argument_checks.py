"""Bad figures are told all at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from opsctl.errors import InputError

LARGEST = 1e30
"""No figure that anybody means is beyond, nor below one part in it; products of such cannot overflow."""

_UNITS = (("gb_s", "GB/s"), ("gb", "(GB)"), ("s", "(s)"), ("h", "(h)"))
"""How a name ends, and what that means."""


def refuse(what: str, problems: Iterable[str], *, hint: str | None = None) -> None:
    """Raise one InputError with all `problems`, or return if there are none."""
    found = list(problems)
    if found:
        count = f"{len(found)} problem{'s' if len(found) != 1 else ''}"
        raise InputError(f"{what}: {count}\n" + "\n".join(f"  {each}" for each in found), hint=hint)


def given(**values: float | None) -> dict[str, float]:
    """Those of them that are."""
    return {name: value for name, value in values.items() if value is not None}


def not_positive(**values: float) -> Iterator[str]:
    """One line for each value that is not a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            yield f"{_words(name)} is {value:g}, needs to be above 0"
        elif not 1 / LARGEST <= value <= LARGEST:
            yield f"{_words(name)} is {value:g}, needs to be between {1 / LARGEST:g} and {LARGEST:g}"


def negative(**values: float) -> Iterator[str]:
    """One line for each value that is not a finite number of 0 or more."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            yield f"{_words(name)} is {value:g}, needs to be 0 or more"
        elif value > LARGEST:
            yield f"{_words(name)} is {value:g}, needs to be at most {LARGEST:g}"


def not_share(**values: float) -> Iterator[str]:
    """One line for each value that is not between 0 and 1."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            yield f"{_words(name)} is {value:g}, needs to be between 0 and 1"


def _words(name: str) -> str:
    """A name as people read it, its unit as the field writes it."""
    for ending, unit in _UNITS:
        if name == ending or name.endswith(f"_{ending}"):
            return f"{name.removesuffix(ending).replace('_', ' ')}{unit}"
    return name.replace("_", " ")
