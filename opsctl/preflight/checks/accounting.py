"""Accounts, QOS, and the limits that they set.

Slurm refuses a job that exceeds a limit alone (MaxSubmit, or a QOS with DenyOnLimit), or lets the job wait for ever. A
job that exceeds a limit only together with other jobs waits for these jobs, which is no problem.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

from opsctl.base.model import JobSpec
from opsctl.base.units import parse_slurm_minutes
from opsctl.preflight.checks.slurm import as_slurm, find_partitions
from opsctl.preflight.effective_limits import Bound, find_limits, named, own
from opsctl.preflight.facts import ClusterFacts, Facts
from opsctl.preflight.problem import Fact, LaunchRequest, Problem, count_gpus, error, error_if, find_near

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
UNITS = {"node": "", "gres/gpu": "GPUs", "cpu": "CPUs"}
NONE_RUNS = frozenset({"MaxJobs", "MaxJobsPU", "MaxJobsPA", "GrpJobs"})
QUEUED = frozenset({"MaxSubmit", "MaxSubmitPU", "MaxSubmitPA", "GrpSubmit"})


def account(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    if facts.cluster is None or facts.cluster.accounting is None:
        return
    account, is_enforced = request.spec.account, _enforced(facts.cluster, "associations")
    accounts = facts.cluster.accounting.accounts
    if account and account.lower() not in {name.lower() for name in accounts}:
        kind = "account.not_yours" if is_enforced else "account.replaced"
        yield error_if(is_enforced, kind, account=account, accounts=tuple(accounts) or "none")
    elif is_enforced and not accounts:
        yield error("account.none")


def qos(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    name = request.spec.qos
    if not name or facts.cluster is None or facts.cluster.accounting is None:
        return
    known, is_enforced = facts.cluster.accounting, _enforced(facts.cluster, "qos")
    names = tuple(qos.name for qos in known.qos)
    association = own(known, request.spec, "")
    if named(known, name) is None:
        kind = "qos.unknown" if is_enforced else "qos.ignored"
        yield error_if(is_enforced, kind, name=name, near=find_near(name, names), known=names)
    elif is_enforced and association and association.qos and name.lower() not in map(str.lower, association.qos):
        yield error("qos.not_yours", account=association.account, name=name, known=association.qos)


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
        if resource:
            yield from _judge_resource(spec, limit, resource, most, whose)
        else:
            yield from _judge_jobs(spec, limit, most, whose)


def _judge_jobs(spec: JobSpec, limit: str, most: int, whose: str) -> Iterator[Problem]:
    minutes = parse_slurm_minutes(spec.time_limit)
    if limit == "MaxWall" and minutes is not None and minutes > most:
        yield error("limits.time_limit", time_limit=spec.time_limit, whose=whose, most=as_slurm(most), limit=limit)
    if limit in QUEUED and spec.tasks > most:
        yield error("limits.tasks", tasks=spec.tasks, whose=whose, most=most, limit=limit)
    if limit in NONE_RUNS and most == 0:
        yield error("limits.none_runs", tasks=spec.tasks, whose=whose, limit=limit)


def _judge_resource(spec: JobSpec, limit: str, resource: str, most: int, whose: str) -> Iterator[Problem]:
    need = _need(spec).get(resource)
    if need is None:
        return
    amount = need // spec.nodes if limit == "MaxTRESPerNode" else need
    if limit.endswith("Mins"):
        amount *= parse_slurm_minutes(spec.time_limit) or 0
    facts: dict[str, Fact] = {
        "nodes": spec.nodes,
        "per_node": need // spec.nodes,
        "unit": UNITS[resource],
        "resource": resource,
        "amount": None if amount == spec.nodes else amount,
        "whose": whose,
        "most": most,
        "limit": limit,
    }
    if limit in AT_MOST and amount > most:
        yield error("limits.exceeded", scope=AT_MOST[limit], **facts)
    if limit == "MinTRES" and resource in EXACT and amount < most:
        yield error("limits.not_reached", **facts)


def _need(spec: JobSpec) -> dict[str, int]:
    """Return the least amount of each resource that the job takes."""
    gpus, cpus = count_gpus(spec), spec.processes_per_node * spec.cpus_per_process
    return {"node": spec.nodes, "gres/gpu": spec.nodes * gpus, "cpu": spec.nodes * cpus}
