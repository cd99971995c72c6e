"""Slurm's words for why a job waits, and what kind of waiting that is."""

from __future__ import annotations

import re
from enum import StrEnum

from opsctl.model import Job, JobState

REASONS = {
    "JobArrayTaskLimit": "waits for the task before it to end",
    "Dependency": "waits for another job to end",
    "Priority": "waits for its turn",
    "Resources": "waits for nodes",
    "BeginTime": "waits for its start time",
    "JobHeldUser": "held",
    "JobHeldAdmin": "held by an administrator",
    "DependencyNeverSatisfied": "will never start: what it depends on did not end as asked",
    "PartitionTimeLimit": "will never start: its time limit is beyond the partition's",
    "PartitionNodeLimit": "will never start: more nodes than the partition allows",
    "BadConstraints": "will never start: no nodes have what it asks for",
    "ReservationDeleted": "will never start: its reservation is gone",
    "InvalidAccount": "will never start: no such account",
    "InvalidQOS": "will never start: no such QOS",
    "AccountNotAllowed": "will never start: its partition does not take its account",
    "QOSNotAllowed": "waits: its partition does not take its QOS",
    "ReqNodeNotAvail": "waits: nodes that it needs are down, drained or reserved",
    "Reservation": "waits for its reservation",
    "PartitionDown": "waits: the partition is down",
    "PartitionInactive": "waits: the partition is inactive",
    "Licenses": "waits for licences",
}
"""Slurm's words for why a job waits, in ours. What is not here is shown as Slurm says it."""


class WaitKind(StrEnum):
    """How a wait will end."""

    FINE = "fine"
    HELD = "held"
    """By the owner: when somebody releases it."""
    ADMIN = "held by an administrator"
    BLOCKED = "blocked"
    """When somebody else does something: brings up a partition, frees a limit that is shared."""
    NEVER = "never"
    FAILED = "failed"
    """Slurm could not start it, and has put it back, held."""
    UNKNOWN = "unknown"
    """A word that is not known here."""


_FINE = {"", "None", "JobArrayTaskLimit", "Dependency", "Priority", "Resources", "BeginTime", "Cleaning", "Prolog",
         "NodesConfiguring", "FrontEndDown"}  # fmt: skip
_BLOCKED = {"ReqNodeNotAvail", "Reservation", "PartitionDown", "PartitionInactive", "Licenses", "NodeDown",
            "ReservationInvalid", "MaxMemPerLimit", "QOSNotAllowed", "FedJobLock"}  # fmt: skip
_OWN_LIMIT = re.compile(r"(Assoc|QOS)Max\w*?(PerJob|PerNode)\w*|QOSMin\w+|AccountNotAllowed|QOSJobLimit")
"""Limits that this job alone is beyond, whatever the others do."""
_SHARED_LIMIT = re.compile(
    r"(Assoc|QOS)(Grp|Max)\w+|Max\w+PerAccount|QOSResourceLimit|AssociationJobLimit|QOSUsageThreshold"
)
_LIMIT = re.compile(r"(Assoc|QOS|)(Grp|Max|Min)([A-Z]\w*?)(PerJob|PerNode|PerUser|PerAccount|NotSatisfied|)(?:Limit)?")
"""Such as AssocGrpNodeLimit, QOSMaxCpuPerUserLimit, MaxJobsPerAccount: whose, of how many jobs, of what."""
_WHAT = {"Cpu": "CPUs", "CPU": "CPUs", "GRES": "GPUs", "Node": "nodes", "Mem": "memory", "Memory": "memory",
         "Wall": "time", "WallDuration": "time", "Jobs": "running jobs", "SubmitJob": "queued jobs",
         "SubmitJobs": "queued jobs"}  # fmt: skip
_TOGETHER = {"PerUser": "a user", "PerAccount": "an account"}


def word(job: Job) -> str:
    """Slurm's own word; the first, where tasks share a row. `ReqNodeNotAvail, UnavailableNodes:...` is that word."""
    return job.reason.strip("()").partition(",")[0].strip()


def explain_wait(job: Job) -> str:
    """In words why it waits."""
    text = word(job)
    return REASONS.get(text) or _limit(text) or text


def _limit(text: str) -> str:
    """In words which limit that is; empty for what is none."""
    match = _LIMIT.fullmatch(text)
    if match is None or not (_OWN_LIMIT.fullmatch(text) or _SHARED_LIMIT.fullmatch(text)):
        return ""
    whose, kind, what, per = match.groups()
    counted, minutes = re.fullmatch(r"(\w+?)((?:Run)?Minutes|)", what).groups()  # type: ignore[union-attr]  # any word fits
    of = "account" if whose == "Assoc" else "QOS"
    amount = f"{_WHAT.get(counted, counted)}{' x minutes' if minutes else ''}"
    if kind == "Min":
        return f"will never start: fewer {amount} than its {of} wants of a job ({text})"
    if _OWN_LIMIT.fullmatch(text):
        one = "on a node" if per == "PerNode" else "a job"
        return f"will never start: more {amount} than its {of} allows {one} ({text})"
    together = _TOGETHER.get(per, "a user" if kind == "Max" else "all its jobs together")
    return f"waits for a limit: the {amount} that its {of} allows {together} ({text})"


def is_limit(job: Job) -> bool:
    """Whether it waits for a limit of its account or QOS."""
    return bool(_limit(word(job)))


def classify_wait(job: Job) -> WaitKind:
    """What kind of waiting that is."""
    text = word(job)
    for kind, holds in (
        (WaitKind.FAILED, job.state in {JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT} or "requeued held" in text),
        (WaitKind.ADMIN, text == "JobHeldAdmin"),
        (WaitKind.HELD, job.is_held),
        (WaitKind.NEVER, REASONS.get(text, "").startswith("will never") or bool(_OWN_LIMIT.fullmatch(text))),
        (WaitKind.FINE, text in _FINE),
        (WaitKind.BLOCKED, text in _BLOCKED or bool(_SHARED_LIMIT.fullmatch(text))),
    ):
        if holds:
            return kind
    return WaitKind.UNKNOWN
