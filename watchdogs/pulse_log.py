"""The PULSE lines of the BigScience chronicles, word for word, so that existing greps find the lines.

The lines go to pulse.log: in the main log, the lines would make a hung train look active.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from opsctl.base.model import Job
from opsctl.base.units import format_duration
from opsctl.launch.wait_reasons import word
from opsctl.state.files import append_line
from opsctl.state.run_dir import RunDir


def lines(train: str, jobs: Sequence[Job], now: datetime) -> list[str]:
    """Return one line per queue row, or one alert line without rows. Times are local, as in other logs."""
    texts = [_row(job, now) for job in jobs]
    texts = texts or [f"***ALERT: {train} is not RUNNING or SCHEDULED! Alert someone at Eng WG***"]
    return [f"[{now.astimezone():%Y-%m-%d %H:%M:%S}] PULSE: {text}" for text in texts]


def _row(job: Job, now: datetime) -> str:
    number = f"{job.array}_{_tasks(job)}" if job.tasks else job.id
    where = f"({number} on '{job.partition}' partition"
    if job.state.is_active:
        elapsed = _elapsed(now - job.start) if job.start else "?"
        return f"{job.name} is running for {elapsed} since {_time(job.start)} {where} ({job.nodes})"
    if not job.state.is_waiting:
        return f"{job.name} is unknown - fix me: (at {_time(job.start)}) {where}) ({job.state.value})"
    return f"{job.name} is {_waits(job, now)} {where})"


def _tasks(job: Job) -> str:
    first, last = job.tasks[0], job.tasks[-1]
    return str(first) if first == last else f"[{first}-{last}%1]"


def _waits(job: Job, now: datetime) -> str:
    if job.start and job.start > now:
        return f"scheduled to start in {format_duration(max(job.start - now, timedelta(0)))} (at {_time(job.start)})"
    before = "waiting for the previous"
    if word(job) == "JobArrayTaskLimit":
        return f"{before} Job Array job to finish before scheduling a new one"
    if word(job) == "Dependency":
        return f"{before} job to finish before scheduling a new one using the dependency mechanism"
    return "waiting to be scheduled"


def _elapsed(span: timedelta) -> str:
    """Format a duration as Slurm does: `2-15:52:19`, `15:52:19`, `2:19`."""
    minutes, seconds = divmod(int(max(0, span.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _time(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%dT%H:%M:%S}" if at else "N/A"


def append(run: RunDir, lines: Sequence[str]) -> None:
    """Append `lines` to the train's pulse log. Raises OSError."""
    append_line(run.logs / "pulse.log", "".join(f"{line}\n" for line in lines).encode(errors="replace"))
