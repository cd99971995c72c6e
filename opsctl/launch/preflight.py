"""What would make Slurm refuse a train, or leave it waiting for ever: all of it, before anything is submitted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from ClusterShell.NodeSet import NodeSet

from opsctl.config import Train
from opsctl.launch.chain import nodeset
from opsctl.model import Job, JobSpec, Limits, Partition, slurm_minutes
from opsctl.ports import Scheduler
from opsctl.render import directives

OURS = frozenset({"comment", "error", "open-mode", "output", "parsable", "requeue", "test-only", "wait", "wrap"})
"""sbatch options that opsctl sets itself, or that would keep it from learning what was submitted."""

SECRET = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What this Slurm is and allows, for whoever launches."""

    partitions: tuple[Partition, ...]
    limits: Limits
    accounts: tuple[str, ...] | None
    """Those that the user may charge; None where nobody keeps accounts."""
    nodes: tuple[str, ...]
    jobs: tuple[Job, ...]


def gather(scheduler: Scheduler, user: str) -> Facts:
    """Ask Slurm all that `problems` wants to know. Raises SchedulerError."""
    accounts = scheduler.accounts(user)
    return Facts(
        partitions=tuple(scheduler.partitions()),
        limits=scheduler.limits(),
        accounts=None if accounts is None else tuple(accounts),
        nodes=tuple(node.name for node in scheduler.nodes()),
        jobs=tuple(scheduler.jobs()),
    )


def problems(train: Train, spec: JobSpec, facts: Facts) -> list[str]:
    """Everything that stands against submitting `spec` here."""
    return [
        *_partition_problems(spec, facts),
        *_time_problems(spec),
        *_task_problems(spec, facts.limits),
        *_account_problems(spec, facts.accounts),
        *_exclude_problems(spec, facts.nodes),
        *_after_problems(spec, facts.jobs),
        *_extra_problems(spec),
        *_secrets(train),
    ]


def _partition_problems(spec: JobSpec, facts: Facts) -> list[str]:
    known = {each.name: each for each in facts.partitions}
    names = spec.partition.split(",") if spec.partition else [each.name for each in facts.partitions if each.is_default]
    if not names:
        return [f"[slurm] partition: none is given and this cluster has no default; there are: {', '.join(known)}"]
    # Slurm takes a list, and starts the job in whichever of them can first.
    judged = [_one_partition(spec, name, known) for name in names]
    return [] if any(not each for each in judged) else [problem for each in judged for problem in each]


def _one_partition(spec: JobSpec, name: str, known: dict[str, Partition]) -> list[str]:
    partition = known.get(name)
    if partition is None:
        near = get_close_matches(name, known, 1)
        advice = f"did you mean {near[0]!r}? " if near else ""
        return [f"[slurm] partition: there is no {name!r} here; {advice}there are: {', '.join(known)}"]
    found = [] if partition.is_up else [f"[slurm] partition: {name!r} is down: it starts nothing"]
    most = min(partition.nodes, partition.nodes if partition.max_nodes is None else partition.max_nodes)
    if spec.nodes > most:
        found.append(f"[slurm] nodes = {spec.nodes}: partition {name!r} lets a job have {most}")
    asked, allowed = slurm_minutes(spec.time_limit), partition.max_minutes
    if asked is not None and allowed is not None and asked > allowed:
        found.append(
            f"[slurm] time_limit = {spec.time_limit}: partition {name!r} allows {_as_slurm(allowed)} at the most"
        )
    return found


def _as_slurm(minutes: int) -> str:
    days, rest = divmod(minutes, 1440)
    clock = f"{rest // 60:02}:{rest % 60:02}:00"
    return f"{days}-{clock}" if days else clock


def _time_problems(spec: JobSpec) -> list[str]:
    minutes = slurm_minutes(spec.time_limit) or 0
    if minutes == 0:
        return [f"[slurm] time_limit = {spec.time_limit}: Slurm takes 0 for no limit; say how long a task may run"]
    if minutes * 60 <= spec.signal_seconds:
        return [
            f"[slurm] signal_seconds = {spec.signal_seconds}: a task has only {minutes * 60} s, so it would be asked to"
            " stop as it starts"
        ]
    return []


def _task_problems(spec: JobSpec, limits: Limits) -> list[str]:
    most = limits.max_array_size - 1
    if spec.tasks < 1:
        return [f"[slurm] tasks = {spec.tasks}: needs at least 1"]
    return [f"[slurm] tasks = {spec.tasks}: this Slurm takes {most} in one array at the most"] * (spec.tasks > most)


def _account_problems(spec: JobSpec, accounts: Sequence[str] | None) -> list[str]:
    if not spec.account or accounts is None or spec.account.lower() in {each.lower() for each in accounts}:
        return []
    return [f"[slurm] account: {spec.account!r} is not yours to charge; you have: {', '.join(accounts) or 'none'}"]


def _exclude_problems(spec: JobSpec, nodes: Sequence[str]) -> list[str]:
    every, excluded = NodeSet.fromlist(list(nodes)), nodeset(spec.exclude)
    if unknown := excluded - every:
        return [f"[slurm] exclude: there are no such nodes here: {unknown}"]
    left = len(every - excluded)
    if excluded and left < spec.nodes:
        return [f"[slurm] exclude: all nodes but {excluded} are {left}, and the train needs {spec.nodes}"]
    return []


def _after_problems(spec: JobSpec, jobs: Sequence[Job]) -> list[str]:
    """Slurm takes a dependency on a job that it does not know as fulfilled, and starts at once."""
    known = {job.id for job in jobs} | {job.array for job in jobs}
    if not spec.after or spec.after.partition("_")[0] in known:
        return []
    return [f"--after {spec.after}: no such job is in the queue, so the train would not wait for anything"]


def _extra_problems(spec: JobSpec) -> list[str]:
    """What opsctl says itself is not said twice; what the train leaves open may be said here, such as a GPU's type."""
    said = {_option(each) for each in directives(replace(spec, extra=()))} | OURS
    return [f"[slurm] extra: --{name} is opsctl's own to set" for each in spec.extra if (name := _option(each)) in said]


def _option(text: str) -> str:
    return text.partition("=")[0].removeprefix("--")


def _secrets(train: Train) -> list[str]:
    return [
        f"[environment] {name}: would stand in body.sh for all to read; put it in a file that only you can read, and"
        " `source` that in [setup] lines"
        for name in train.environment
        if SECRET.search(name)
    ]
