"""What `sacct` printed into a file: when the jobs of a foreign run were submitted, started and ended. Pure but for the
file that it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opsctl.errors import InputError, cannot_read
from opsctl.model import Job, JobState
from opsctl.nodesets import expand
from opsctl.scheduler.states import parse_state

ASK = "sacct --parsable2 --duplicates --allocations --format=JobID,State,Submit,Start,End,NodeList -j JOBS > sacct.txt"
LARGEST = 64 << 20
_NEEDED = ("jobid", "state", "start", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One job, or one attempt of it. Times in seconds since the epoch."""

    job: str
    state: JobState
    submitted: float | None
    begin: float | None
    """None for one that never started."""
    end: float | None
    """None for one that runs."""
    nodes: str = ""

    @property
    def node_count(self) -> int:
        try:
            return len(expand(self.nodes)) if self.nodes else 0
        except InputError:
            return 0


def ran(jobs: Sequence[Job]) -> list[JobRun]:
    """What accounting told of jobs."""
    return [
        JobRun(
            job=job.full_id, state=job.state, nodes=job.nodes,
            submitted=_seconds(job.submitted), begin=_seconds(job.start),
            end=_seconds(job.end) if job.state.is_final else None,
        )
        for job in jobs
    ]  # fmt: skip


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def read_sacct(path: Path) -> list[JobRun]:
    """The jobs of a file that sacct printed, with `--parsable2` or in columns, in order of their start.

    Raises InputError, with every problem, for a file of something else; RunDirError for one that cannot be read.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"{path}: {path.stat().st_size >> 20} MB is too large for an output of sacct", hint=ASK)
        text = path.read_text(errors="replace")
    except OSError as error:
        raise cannot_read(path, error) from error
    return parse_sacct(text, str(path))


def parse_sacct(text: str, where: str) -> list[JobRun]:
    """The jobs of an output of sacct; steps of jobs (`12.batch`) are passed over. Raises InputError."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{where}: is empty", hint=ASK)
    head, *rows = _cells(lines)
    names = [name.strip().lower() for name in head]
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise InputError(f"{where}: has no column {', '.join(missing)} in its first line", hint=ASK)
    found, problems = [], []
    for number, row in rows_of(rows):
        given = dict(zip(names, (cell.strip() for cell in row), strict=False))
        try:
            if "." not in given["jobid"]:
                found.append(_ran(given))
        except (ValueError, KeyError, OverflowError) as error:
            problems.append(f"  line {number}: {error}")
    if problems:
        more = [f"  and {len(problems) - 9} more"] if len(problems) > 9 else []
        raise InputError("\n".join([f"{where}: is not what sacct prints", *problems[:9], *more]), hint=ASK)
    if not found:
        raise InputError(f"{where}: there is no job in it", hint=ASK)
    return sorted(found, key=lambda ran: (ran.begin is None, ran.begin or ran.submitted or 0.0))


def rows_of(rows: Sequence[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """With their line's number, the first being the head."""
    return ((number, row) for number, row in enumerate(rows, 2) if any(cell.strip("- ") for cell in row))


def _cells(lines: Sequence[str]) -> list[list[str]]:
    """By `|`, or by the columns that the dashes under the head mark."""
    if "|" in lines[0]:
        return [line.split("|") for line in lines]
    if len(lines) > 1 and re.fullmatch(r"[- ]+", lines[1]):
        spans = [match.span() for match in re.finditer(r"-+", lines[1])]
        return [[line[begin:end] for begin, end in spans] for line in lines]
    return [line.split() for line in lines]


def _ran(given: dict[str, str]) -> JobRun:
    made = JobRun(
        job=given["jobid"], state=parse_state(given["state"]), submitted=_time(given.get("submit", "")),
        begin=_time(given["start"]), end=_time(given["end"]), nodes=given.get("nodelist", ""),
    )  # fmt: skip
    if made.begin is not None and made.end is not None and made.end < made.begin:
        raise ValueError(f"job {made.job} ended before it started")
    return made


def _time(text: str) -> float | None:
    """Local time, as sacct writes it, or seconds since the epoch; None for Unknown and None."""
    if text.lower() in {"", "unknown", "none", "n/a"}:
        return None
    if text.isdecimal():
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r:.40} is not a time") from None
