"""Accounts, QOS, and the limits that they set.

Slurm refuses a job that exceeds a limit alone (MaxSubmit, or a QOS with DenyOnLimit), or lets the job wait for ever. A
job that exceeds a limit only together with other jobs waits for these jobs, which is no problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import chain

from opsctl.base.model import JobSpec
from opsctl.base.units import parse_slurm_minutes
from opsctl.preflight.checks.slurm import as_slurm, find_partitions
from opsctl.preflight.effective_limits import Bound, find_limits, named, own
from opsctl.preflight.facts import ClusterFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, count_gpus, error, warning

EXACT = frozenset({"node", "gres/gpu"})
"""Resources whose amount is exact. Slurm may add CPUs, for whole nodes or whole cores."""
AT_MOST = {
    "MaxTRES": "for a job",
    "MaxTRESPU": "for all jobs of a user together",
    "MaxTRESPA": "for all jobs of an account together",
    "GrpTRES": "for all its jobs together",
    "MaxTRESPerNode": "for a job on one node",
    "MaxTRESMins": "for a job, times its minutes",
    "GrpTRESRunMins": "for all that runs together, times its minutes",
}
NONE_RUNS = frozenset({"MaxJobs", "MaxJobsPU", "MaxJobsPA", "GrpJobs"})
QUEUED = frozenset({"MaxSubmit", "MaxSubmitPU", "MaxSubmitPA", "GrpSubmit"})


def account(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    if facts.cluster is None or facts.cluster.accounting is None:
        return
    account, is_enforced = request.spec.account, _enforced(facts.cluster, "associations")
    accounts = facts.cluster.accounting.accounts
    remedy = "use one of your accounts, or ask to be added to this account"
    if account and account.lower() not in {name.lower() for name in accounts}:
        text = f"[slurm] account: you may not use {account!r}; you have: {', '.join(accounts) or 'none'}"
        if is_enforced:
            yield error(text, remedy)
        else:
            yield warning(f"{text}; this Slurm would accept the job and charge another account", remedy)
    elif is_enforced and not accounts:
        yield error("[slurm] account: you have none here, and this Slurm runs no job without an account", remedy)


def qos(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    name = request.spec.qos
    if not name or facts.cluster is None or facts.cluster.accounting is None:
        return
    known, is_enforced = facts.cluster.accounting, _enforced(facts.cluster, "qos")
    names = [qos.name for qos in known.qos]
    association = own(known, request.spec, "")
    if named(known, name) is None:
        near = get_close_matches(name, names, 1)
        advice = f"did you mean {near[0]!r}? " if near else ""
        text = f"[slurm] qos: there is no {name!r} here; {advice}there are: {', '.join(names)}"
        if is_enforced:
            yield error(text, "set qos to one of these, or leave qos out")
        else:
            yield warning(
                f"{text}; this Slurm would accept the job and ignore the QOS",
                "set qos to one of these, or leave qos out",
            )
    elif is_enforced and association and association.qos and name.lower() not in map(str.lower, association.qos):
        yield error(
            f"[slurm] qos: account {association.account!r} may not use {name!r}; it has: {', '.join(association.qos)}",
            "set qos to one of these, or use another account",
        )


def _enforced(cluster: ClusterFacts, policy: str) -> bool:
    return policy in cluster.limits.enforced


def limits(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Report limits only if the job exceeds them in every partition, as for `partition`."""
    cluster = facts.cluster
    if cluster is None or cluster.accounting is None or not _enforced(cluster, "limits"):
        return
    known = {partition.name: partition for partition in cluster.partitions}
    names = [name for name in find_partitions(request.spec, cluster.partitions) if name in known]
    spec, accounting = request.spec, cluster.accounting
    by_partition = [list(_list_exceeded(spec, find_limits(spec, accounting, known[name]))) for name in names]
    if by_partition and all(by_partition):
        yield from dict.fromkeys(chain.from_iterable(by_partition))


def _list_exceeded(spec: JobSpec, bounds: Mapping[str, Bound]) -> Iterator[Problem]:
    for key, (most, whose) in bounds.items():
        limit, _, resource = key.partition(" ")
        excess = _of_resource(spec, limit, resource, most) if resource else _of_jobs(spec, limit, most)
        if excess:
            setting, rule, remedy = excess
            yield error(f"[slurm] {setting}: {whose} {rule} ({limit})", remedy)


def _of_jobs(spec: JobSpec, limit: str, most: int) -> tuple[str, str, str] | None:
    """Return setting, rule and remedy of a limit that counts jobs or time; None within the limit."""
    minutes, tasks = parse_slurm_minutes(spec.time_limit), f"tasks = {spec.tasks}"
    if limit == "MaxWall" and minutes is not None and minutes > most:
        short = f"allows at most {as_slurm(most)}"
        return f"time_limit = {spec.time_limit}", short, "set a shorter time_limit and more tasks, or use another QOS"
    if limit in QUEUED and spec.tasks > most:
        return (
            tasks,
            f"allows at most {most} queued tasks",
            "set fewer tasks now, and add tasks later with launch --after",
        )
    if limit in NONE_RUNS and most == 0:
        return tasks, "allows no running job", "use another QOS or account, or ask for a higher limit"
    return None


def _of_resource(spec: JobSpec, limit: str, resource: str, most: int) -> tuple[str, str, str] | None:
    """Return setting, rule and remedy of a limit on a resource; None within the limit."""
    need = _need(spec).get(resource)
    if need is None:
        return None
    amount = need // spec.nodes if limit == "MaxTRESPerNode" else need
    if limit.endswith("Mins"):
        amount *= parse_slurm_minutes(spec.time_limit) or 0
    per_node = {"node": "", "gres/gpu": f" of {need // spec.nodes} GPUs", "cpu": f" of {need // spec.nodes} CPUs"}
    request = f"nodes = {spec.nodes}{per_node[resource]}"
    unit = "" if amount == spec.nodes else f", {resource}={amount}"
    if limit in AT_MOST and amount > most:
        return request + unit, f"allows {most} {AT_MOST[limit]}", "set fewer nodes, or use another QOS or account"
    if limit == "MinTRES" and resource in EXACT and amount < most:
        return request + unit, f"requires {most} of a job", "set more nodes, or use another QOS"
    return None


def _need(spec: JobSpec) -> dict[str, int]:
    """Return the least amount of each resource that the job takes."""
    gpus, cpus = count_gpus(spec), spec.processes_per_node * spec.cpus_per_process
    return {"node": spec.nodes, "gres/gpu": spec.nodes * gpus, "cpu": spec.nodes * cpus}
