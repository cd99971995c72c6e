"""Parse single fields of Slurm's output: times, array indices, limits, states of jobs and nodes.

Raise nothing unless the docstring says so. A state that is not known is never an end, nor a node in service.
"""

import re
from contextlib import suppress
from datetime import UTC, datetime

from opsctl.base.model import JobState
from opsctl.base.tables import read_package_table

EMPTY_WORDS = frozenset({"", "(null)", "N/A", "NONE", "None", "none", "Unknown", "None assigned"})
"""The words with which Slurm's programs print an empty field."""
MAX_TASK_INDEX = 4_000_000
"""The largest array index that any Slurm version allows."""
MAX_TASKS = 100_000
"""More indices of one array are left out: any user can submit millions, and every command reads the queue."""
TASK_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?", re.ASCII)
JOB_WORDS = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
"""States and flags of a node that has a job."""

SLURM_WORDS = read_package_table("slurm/slurm_words.toml")
IN_SERVICE_WORDS = JOB_WORDS.union(SLURM_WORDS["in_service"])
"""States and flags of a node that runs jobs or waits for jobs."""

OUT_OF_SERVICE_WORDS = frozenset(SLURM_WORDS["out_of_service"])
"""States and flags of a node that gets no new jobs."""


def parse_text(word: str) -> str:
    """Return the word, or an empty text for one of Slurm's words for an empty field."""
    return "" if word.strip() in EMPTY_WORDS else word


def split_list(word: str) -> tuple[str, ...]:
    """Split at commas, without empty parts."""
    return tuple(part for part in parse_text(word).split(",") if part)


def parse_count(word: str) -> int:
    """Return the number; 0 for a word that is not a number."""
    return int(word) if is_number(word) else 0


def parse_job_number(word: str) -> str:
    """Return a job's number, as text. Raises ValueError for a word that is not a number."""
    if not is_number(word):
        raise ValueError(f"{word!r:.40} is not a job id")
    return word


def is_number(word: str) -> bool:
    """Whether the word is a plain number of at most ten digits."""
    return word.isascii() and word.isdigit() and len(word) <= 10


def parse_time(word: str) -> datetime | None:
    """Parse seconds since the epoch, as SLURM_TIME_FORMAT=%s prints them; None for `N/A` and other words."""
    with suppress(OverflowError, ValueError, OSError):
        if is_number(word):
            return datetime.fromtimestamp(int(word), UTC)
    return None


def parse_tasks(word: str) -> tuple[int, ...]:
    """Parse array indices: `7`, `2-10%1`, `1,3,5-7%2`, `0-399:7`. Parts that are not indices, such as `...`, are
    left out."""
    indices: set[int] = set()
    for part in word.strip("[]").partition("%")[0].split(","):
        match = TASK_RANGE.fullmatch(part)
        if match is None:
            continue
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last <= MAX_TASK_INDEX and (last - first) // step + len(indices) < MAX_TASKS:
            indices.update(range(first, last + 1, step))
    return tuple(sorted(indices))


def parse_exit_code(word: str) -> str:
    """Convert a raw wait status such as 1792 or 15 to `7:0` or `0:15`; return other words unchanged."""
    return f"{int(word) >> 8}:{int(word) & 0x7F}" if is_number(word) else word


def parse_limit(word: str) -> int | None:
    """Return the limit; None where there is no limit."""
    return int(word) if is_number(word) else None


def parse_state(text: str) -> JobState:
    """Return the job state that squeue or sacct printed, in forms such as `CANCELLED by 1001` and `RUNNING+`."""
    word = text.split(maxsplit=1)[0].rstrip("+") if text.strip() else ""
    return JobState.__members__.get(word, JobState.UNKNOWN)


def parse_node_reason(state: str, reason: str) -> str:
    """Return why a node is out of service; empty for a node in service.

    Since 24.11 Slurm stores the reason of a drain until the next drain, so RESUME leaves an old reason behind.
    """
    return "" if set(state.upper().split("+")) <= IN_SERVICE_WORDS else reason
