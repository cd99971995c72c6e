"""Reasons why Slurm lets a job wait, in plain words, and how each wait ends."""

import math
import re
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache

from opsctl.base.model import Job, JobState
from opsctl.base.tables import read_package_table
from opsctl.state.journal import TrainHistory

TABLE = "launch/wait_reasons.toml"


class WaitKind(StrEnum):
    """How a wait ends."""

    FINE = "fine"
    HELD = "held"
    """The owner must release the job."""
    ADMIN = "held by an administrator"
    BLOCKED = "blocked"
    """Somebody else must act: bring up a partition, or free a shared limit."""
    NEVER = "never"
    FAILED = "failed"
    """Slurm could not start the job, and has requeued it as held."""
    UNKNOWN = "unknown"
    """opsctl does not know the reason."""


MAX_PLANNED_TASKS = 20
"""Slurm's default of bf_max_job_array_resv."""
PLANNED_REASONS = frozenset({"Resources", "Priority"})
"""With other reasons, the start is a begin time or unknown."""
ESTIMATE_AGE = timedelta(minutes=10)
"""Slurm may have made its estimate this long ago."""
_SCOPES = {"PerUser": "a user", "PerAccount": "an account"}


def word(job: Job) -> str:
    """Return the first word of Slurm's reason: `ReqNodeNotAvail` of `(ReqNodeNotAvail, UnavailableNodes:...)`."""
    return job.reason.strip("()").partition(",")[0].strip()


def with_first_start(job: Job, limit_minutes: float, now: datetime) -> Job:
    """Return a waiting row of a train with the expected start of its first task; the row itself if that is unknown.

    Slurm's backfill plans the tasks of a `%1` array one after the other, each for its whole time limit, and the row
    shows the start of the last task planned (22.05.8, measured). An estimate that would lie in the past is of a Slurm
    that shows the first task.
    """
    planned = min(len(job.tasks), MAX_PLANNED_TASKS)
    if job.start is None or not math.isfinite(limit_minutes) or planned < 2 or word(job) not in PLANNED_REASONS:
        return job
    first = job.start - timedelta(minutes=limit_minutes * (planned - 1))
    return replace(job, start=max(first, now)) if first > now - ESTIMATE_AGE else job


@cache
def _limit(name: str) -> re.Pattern[str]:
    return re.compile(read_package_table(TABLE)["limits"][name])


@cache
def read_reasons() -> dict[str, tuple[WaitKind, str]]:
    """Return the kind and the explanation of each reason in wait_reasons.toml."""
    reasons: dict[str, tuple[WaitKind, str]] = {}
    for kind, rows in read_package_table(TABLE)["kinds"].items():
        reasons |= {reason: (WaitKind(kind), says) for reason, says in rows.items()}
    return reasons


def is_own_hold(job: Job, history: TrainHistory) -> bool:
    """Whether opsctl holds the job: Slurm calls root an administrator, also of root's own jobs."""
    return history.held is not None and word(job) == "JobHeldAdmin"


def explain_wait(job: Job, *, is_ours: bool = False) -> str:
    """Return why the job waits. `is_ours`: opsctl, or who uses it, holds the job."""
    reason = "JobHeldUser" if is_ours else word(job)
    _, says = read_reasons().get(reason, (WaitKind.UNKNOWN, ""))
    return says or _explain_limit(reason) or reason


def _explain_limit(reason: str) -> str:
    """Explain which limit the job has reached; return an empty text for a reason that is no limit."""
    match = _limit("parts").fullmatch(reason)
    if match is None or not (_limit("own").fullmatch(reason) or _limit("shared").fullmatch(reason)):
        return ""
    owner = "account" if match[1] == "Assoc" else "QOS"
    kind, scope = match[2], match[4]
    resource = _limit("minutes").sub("", match[3])
    amount = read_package_table(TABLE)["resources"].get(resource, resource)
    if resource != match[3]:
        amount = f"{amount} x minutes"
    if kind == "Min":
        return f"will never start: it has fewer {amount} than its {owner} requires of a job ({reason})"
    if _limit("own").fullmatch(reason):
        unit = "on a node" if scope == "PerNode" else "a job"
        return f"will never start: it needs more {amount} than its {owner} allows {unit} ({reason})"
    users = _SCOPES.get(scope, "a user" if kind == "Max" else "all its jobs together")
    return f"waiting for a limit: the {amount} that its {owner} allows {users} ({reason})"


def is_limit(job: Job) -> bool:
    """Return whether the job waits for a limit of its account or QOS."""
    return bool(_explain_limit(word(job)))


def classify_wait(job: Job, *, is_ours: bool = False) -> WaitKind:
    """Return how the wait ends. `is_ours`: as for `explain_wait`."""
    reason = "JobHeldUser" if is_ours else word(job)
    if job.state in {JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT} or "requeued held" in reason:
        return WaitKind.FAILED
    if job.is_held and reason != "JobHeldAdmin":
        return WaitKind.HELD
    if reason in read_reasons():
        return read_reasons()[reason][0]
    if _limit("own").fullmatch(reason):
        return WaitKind.NEVER
    return WaitKind.BLOCKED if _limit("shared").fullmatch(reason) else WaitKind.UNKNOWN
