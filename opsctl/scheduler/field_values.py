"""What single words of Slurm's mean: times, array indices, limits. Nothing here raises, unless it says so."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime

NOTHING = frozenset({"", "(null)", "N/A", "NONE", "None", "none", "Unknown", "None assigned"})
"""How Slurm's programs write that there is nothing."""
LARGEST_TASK = 4_000_000
"""The largest array index that any Slurm allows."""
TASKS = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?", re.ASCII)


def text_of(word: str) -> str:
    """The word, or nothing where it says that there is nothing."""
    return "" if word.strip() in NOTHING else word


def listed(word: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(each for each in text_of(word).split(",") if each)


def count_of(word: str) -> int:
    """A number; 0 for what is not one."""
    return int(word) if is_number(word) else 0


def number_of(word: str) -> str:
    """A job's number, still as text. Raises ValueError for anything else."""
    if not is_number(word):
        raise ValueError(f"{word!r} is not a job id")
    return word


def is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 10


def time_of(word: str) -> datetime | None:
    """A time in seconds since the epoch, as SLURM_TIME_FORMAT=%s has it; None for `N/A` and the like."""
    with suppress(OverflowError, ValueError, OSError):
        if is_number(word):
            return datetime.fromtimestamp(int(word), UTC)
    return None


def tasks_of(word: str) -> tuple[int, ...]:
    """Array indices: `7`, `2-10%1`, `1,3,5-7%2`, `0-399:7`. Parts that are no indices, such as `...`, are left out."""
    numbers: set[int] = set()
    for part in word.strip("[]").partition("%")[0].split(","):
        match = TASKS.fullmatch(part)
        if match and int(match[2] or match[1]) <= LARGEST_TASK:
            numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))
    return tuple(sorted(numbers))


def exit_code_of(word: str) -> str:
    """A raw wait status, such as 1792 or 15, as `7:0` or `0:15`."""
    return f"{int(word) >> 8}:{int(word) & 0x7F}" if is_number(word) else word


def limit_of(word: str) -> int | None:
    """A number that limits something; None where nothing does."""
    return int(word) if is_number(word) else None
