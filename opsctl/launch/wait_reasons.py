"""Reasons why Slurm lets a job wait, in plain words, and how each wait ends."""

from __future__ import annotations

import re
from enum import StrEnum

from opsctl.base.model import Job, JobState

REASONS = {
    "JobArrayTaskLimit": "waiting for the previous task",
    "Dependency": "waiting for another job to end",
    "Priority": "waiting behind jobs of higher priority",
    "Resources": "waiting for free nodes",
    "BeginTime": "waiting for its start time",
    "JobHeldUser": "held",
    "JobHeldAdmin": "held by an administrator",
    "DependencyNeverSatisfied": "will never start: the job before it failed",
    "PartitionTimeLimit": "will never start: its time limit exceeds the partition's limit",
    "PartitionNodeLimit": "will never start: it needs more nodes than the partition allows",
    "BadConstraints": "will never start: no node matches its constraints",
    "ReservationDeleted": "will never start: its reservation was deleted",
    "InvalidAccount": "will never start: its account does not exist",
    "InvalidQOS": "will never start: its QOS does not exist",
    "AccountNotAllowed": "will never start: the partition refuses its account",
    "QOSNotAllowed": "waiting: the partition refuses its QOS",
    "ReqNodeNotAvail": "waiting: nodes that it needs are down, drained or reserved",
    "Reservation": "waiting for its reservation",
    "PartitionDown": "waiting: the partition is down",
    "PartitionInactive": "waiting: the partition is inactive",
    "Licenses": "waiting for licences",
}
"""Slurm's reason and its explanation. Other reasons are shown as Slurm prints them."""


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


_FINE = {
    "",
    "None",
    "JobArrayTaskLimit",
    "Dependency",
    "Priority",
    "Resources",
    "BeginTime",
    "Cleaning",
    "Prolog",
    "NodesConfiguring",
    "FrontEndDown",
}
_BLOCKED = {
    "ReqNodeNotAvail",
    "Reservation",
    "PartitionDown",
    "PartitionInactive",
    "Licenses",
    "NodeDown",
    "ReservationInvalid",
    "MaxMemPerLimit",
    "QOSNotAllowed",
    "FedJobLock",
}
_OWN_LIMIT = re.compile(r"(Assoc|QOS)Max\w*?(PerJob|PerNode)\w*|QOSMin\w+|AccountNotAllowed|QOSJobLimit")
"""Limits that this job exceeds alone, whatever other jobs do."""
_SHARED_LIMIT = re.compile(
    r"(Assoc|QOS)(Grp|Max)\w+|Max\w+PerAccount|QOSResourceLimit|AssociationJobLimit|QOSUsageThreshold"
)
_LIMIT = re.compile(r"(Assoc|QOS|)(Grp|Max|Min)([A-Z]\w*?)(PerJob|PerNode|PerUser|PerAccount|NotSatisfied|)(?:Limit)?")
"""The parts of AssocGrpNodeLimit, QOSMaxCpuPerUserLimit, MaxJobsPerAccount: owner, kind, resource, scope."""
_MINUTES = re.compile(r"(?:Run)?Minutes$")
_RESOURCES = {
    "Cpu": "CPUs",
    "CPU": "CPUs",
    "GRES": "GPUs",
    "Node": "nodes",
    "Mem": "memory",
    "Memory": "memory",
    "Wall": "time",
    "WallDuration": "time",
    "Jobs": "running jobs",
    "SubmitJob": "queued jobs",
    "SubmitJobs": "queued jobs",
}
_SCOPES = {"PerUser": "a user", "PerAccount": "an account"}


def word(job: Job) -> str:
    """Return the first word of Slurm's reason: `ReqNodeNotAvail` of `(ReqNodeNotAvail, UnavailableNodes:...)`."""
    return job.reason.strip("()").partition(",")[0].strip()


def explain_wait(job: Job) -> str:
    """Explain why the job waits."""
    reason = word(job)
    return REASONS.get(reason) or _explain_limit(reason) or reason


def _explain_limit(reason: str) -> str:
    """Explain which limit the job has reached; return an empty text for a reason that is no limit."""
    match = _LIMIT.fullmatch(reason)
    if match is None or not (_OWN_LIMIT.fullmatch(reason) or _SHARED_LIMIT.fullmatch(reason)):
        return ""
    owner = "account" if match[1] == "Assoc" else "QOS"
    kind, scope = match[2], match[4]
    resource = _MINUTES.sub("", match[3])
    amount = _RESOURCES.get(resource, resource)
    if resource != match[3]:
        amount = f"{amount} x minutes"
    if kind == "Min":
        return f"will never start: it has fewer {amount} than its {owner} requires of a job ({reason})"
    if _OWN_LIMIT.fullmatch(reason):
        unit = "on a node" if scope == "PerNode" else "a job"
        return f"will never start: it needs more {amount} than its {owner} allows {unit} ({reason})"
    users = _SCOPES.get(scope, "a user" if kind == "Max" else "all its jobs together")
    return f"waiting for a limit: the {amount} that its {owner} allows {users} ({reason})"


def is_limit(job: Job) -> bool:
    """Return whether the job waits for a limit of its account or QOS."""
    return bool(_explain_limit(word(job)))


def classify_wait(job: Job) -> WaitKind:
    """Return how the job's wait ends."""
    reason = word(job)
    for kind, matches in (
        (WaitKind.FAILED, job.state in {JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT} or "requeued held" in reason),
        (WaitKind.ADMIN, reason == "JobHeldAdmin"),
        (WaitKind.HELD, job.is_held),
        (WaitKind.NEVER, REASONS.get(reason, "").startswith("will never") or bool(_OWN_LIMIT.fullmatch(reason))),
        (WaitKind.FINE, reason in _FINE),
        (WaitKind.BLOCKED, reason in _BLOCKED or bool(_SHARED_LIMIT.fullmatch(reason))),
    ):
        if matches:
            return kind
    return WaitKind.UNKNOWN
