"""Jobs from a file with the output of `sacct`: when they were submitted, started and ended."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from opsctl.base.errors import InputError, cannot_read
from opsctl.base.model import Job, JobState
from opsctl.base.nodesets import expand_if_list
from opsctl.base.units import format_size
from opsctl.slurm.field_values import parse_state

SACCT_HINT = (
    "sacct --parsable2 --duplicates --allocations --format=JobID,State,Submit,Start,End,NodeList -j JOBS > sacct.txt"
)
MAX_FILE_BYTES = 64 << 20
MAX_PROBLEMS = 9
_REQUIRED_COLUMNS = ("jobid", "state", "start", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One start of a job, or a job that never started. Times in seconds since the epoch."""

    job: str
    state: JobState
    submitted: float | None
    begin: float | None
    """None for a job that never started."""
    end: float | None
    """None for a running job."""
    nodes: str = ""

    @property
    def node_count(self) -> int:
        return len(expand_if_list(self.nodes))


def convert_jobs(jobs: Sequence[Job]) -> list[JobRun]:
    """Convert jobs from Slurm's accounting."""
    return [
        JobRun(
            job=job.full_id,
            state=job.state,
            submitted=job.submitted.timestamp() if job.submitted else None,
            begin=job.start.timestamp() if job.start else None,
            end=job.end.timestamp() if job.end and job.state.is_final else None,
            nodes=job.nodes,
        )
        for job in jobs
    ]


def read_past_jobs(path: Path) -> list[JobRun]:
    """Read the output of sacct, with `--parsable2` or in columns; return its jobs in the order of their starts.

    Raises InputError, with every problem, for a file with other contents; RunDirError for an unreadable file.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise InputError(f"{path}: {format_size(size_bytes)} is too large for sacct output", hint=SACCT_HINT)
        text = path.read_text(errors="replace")
    except OSError as error:
        raise cannot_read(path, error) from error
    return parse_past_jobs(text, str(path))


def parse_past_jobs(text: str, where: str) -> list[JobRun]:
    """Parse the output of sacct. Job steps (`12.batch`) are skipped. Raises InputError."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{where}: the file is empty", hint=SACCT_HINT)
    head, *rows = _cells(lines)
    names = [name.strip().lower() for name in head]
    missing = [name for name in _REQUIRED_COLUMNS if name not in names]
    if missing:
        raise InputError(f"{where}: the first line has no column {', '.join(missing)}", hint=SACCT_HINT)
    jobs, problems = [], []
    for number, row in _number_rows(rows):
        values = dict(zip(names, (cell.strip() for cell in row), strict=False))
        try:
            if "." not in values["jobid"]:
                jobs.append(_parse_job(values))
        except (ValueError, KeyError, OverflowError) as error:
            problems.append(f"  line {number}: {error}")
    if problems:
        hidden = len(problems) - MAX_PROBLEMS
        more = [f"  and {hidden} more"] if hidden > 0 else []
        raise InputError("\n".join([f"{where}: not sacct output", *problems[:MAX_PROBLEMS], *more]), hint=SACCT_HINT)
    if not jobs:
        raise InputError(f"{where}: the file has no jobs", hint=SACCT_HINT)
    return sorted(jobs, key=lambda job: (job.begin is None, job.begin or job.submitted or 0.0))


def _number_rows(rows: Sequence[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, with their line number; the head is line 1."""
    return ((number, row) for number, row in enumerate(rows, 2) if any(cell.strip("- ") for cell in row))


def _cells(lines: Sequence[str]) -> list[list[str]]:
    """Split lines at `|`, at the columns marked by dashes under the head, or at white space."""
    if "|" in lines[0]:
        return [line.split("|") for line in lines]
    if len(lines) > 1 and re.fullmatch(r"[- ]+", lines[1]):
        spans = [match.span() for match in re.finditer(r"-+", lines[1])]
        return [[line[begin:end] for begin, end in spans] for line in lines]
    return [line.split() for line in lines]


def _parse_job(values: dict[str, str]) -> JobRun:
    job = JobRun(
        job=values["jobid"],
        state=parse_state(values["state"]),
        submitted=_parse_time(values.get("submit", "")),
        begin=_parse_time(values["start"]),
        end=_parse_time(values["end"]),
        nodes=values.get("nodelist", ""),
    )
    if job.begin is not None and job.end is not None and job.end < job.begin:
        raise ValueError(f"the end of job {job.job} lies before its start")
    return job


def _parse_time(text: str) -> float | None:
    """Parse local time, as sacct prints it, or seconds since the epoch. Return None for `Unknown` and `None`."""
    if text.lower() in {"", "unknown", "none", "n/a"}:
        return None
    if text.isdecimal():
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r:.40} is not a time") from None
