"""Who may run what: accounts, QOS, and the limits that they set.

A job that is beyond such a limit by itself is refused (MaxSubmit, or a QOS with DenyOnLimit), or waits for ever. One
that is beyond it together with others waits for its turn, which is no finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from opsctl.model import JobSpec
from opsctl.preflight.checks.slurm import as_slurm, asked
from opsctl.preflight.effective_limits import Bound, find_limits, named, own
from opsctl.preflight.facts import ClusterFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning
from opsctl.units import parse_slurm_minutes

EXACT = frozenset({"node", "gres/gpu"})
"""CPUs may become more: of a node that is taken parse_whole, or where Slurm gives out cores."""
GPUS = re.compile(r"--(?:gres=gpu:|gpus-per-node=)(?:[\w.-]+:)?(\d+)", re.ASCII)
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
    known, given, is_enforced = facts.cluster.accounting, request.spec.account, _enforced(facts.cluster, "associations")
    mine = known.accounts
    remedy = "charge one of yours, or have yourself added to it"
    if given and given.lower() not in {each.lower() for each in mine}:
        text = f"[slurm] account: {given!r} is not yours to charge; you have: {', '.join(mine) or 'none'}"
        if is_enforced:
            yield error(text, remedy)
        else:
            yield warning(f"{text}; this Slurm would not refuse it, and charge another", remedy)
    elif is_enforced and not mine:
        yield error("[slurm] account: you have none here, and without one this Slurm runs nothing", remedy)


def qos(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    given = request.spec.qos
    if not given or facts.cluster is None or facts.cluster.accounting is None:
        return
    known, is_enforced = facts.cluster.accounting, _enforced(facts.cluster, "qos")
    names = [qo.name for qo in known.qos]
    mine = own(known, request.spec, "")
    if named(known, given) is None:
        near = get_close_matches(given, names, 1)
        advice = f"did you mean {near[0]!r}? " if near else ""
        text = f"[slurm] qos: there is no {given!r} here; {advice}there are: {', '.join(names)}"
        if is_enforced:
            yield error(text, "name one of these, or none")
        else:
            yield warning(f"{text}; this Slurm would not refuse it, and run it without", "name one of these, or none")
    elif is_enforced and mine and mine.qos and given.lower() not in {qo.lower() for qo in mine.qos}:
        yield error(
            f"[slurm] qos: {given!r} is not for you in account {mine.account!r}; there you have: {', '.join(mine.qos)}",
            "take one of these, or another account",
        )


def _enforced(cluster: ClusterFacts, what: str) -> bool:
    return what in cluster.limits.enforced


def limits(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Of several partitions one whose limits it keeps is enough, as for `partition`."""
    cluster = facts.cluster
    if cluster is None or cluster.accounting is None or not _enforced(cluster, "limits"):
        return
    known = {partition.name: partition for partition in cluster.partitions}
    names = [name for name in asked(request.spec, cluster.partitions) if name in known]
    judged = [list(_beyond(request.spec, find_limits(request.spec, cluster.accounting, known[name]))) for name in names]
    if judged and all(judged):
        yield from dict.fromkeys(problem for problems in judged for problem in problems)


def _beyond(spec: JobSpec, bounds: Mapping[str, Bound]) -> Iterator[Problem]:
    for key, (most, whose) in bounds.items():
        limit, _, resource = key.partition(" ")
        said = _of_resource(spec, limit, resource, most) if resource else _of_jobs(spec, limit, most)
        if said:
            asked_for, rule, remedy = said
            yield error(f"[slurm] {asked_for}: {whose} {rule} ({limit})", remedy)


def _of_jobs(spec: JobSpec, limit: str, most: int) -> tuple[str, str, str] | None:
    """What is asked for, what stands against it, and what to do; None where it is within the limit."""
    minutes, tasks = parse_slurm_minutes(spec.time_limit), f"tasks = {spec.tasks}"
    if limit == "MaxWall" and minutes is not None and minutes > most:
        short = f"allows {as_slurm(most)} at the most"
        return f"time_limit = {spec.time_limit}", short, "a shorter time_limit, and more tasks; or another QOS"
    if limit in QUEUED and spec.tasks > most:
        return tasks, f"lets {most} be queued at the most", "fewer now; later more behind them, with launch --after"
    if limit in NONE_RUNS and most == 0:
        return tasks, "lets none of them run", "another QOS or account, or ask for more"
    return None


def _of_resource(spec: JobSpec, limit: str, resource: str, most: int) -> tuple[str, str, str] | None:
    """The same for what is counted of a resource."""
    need = _need(spec).get(resource)
    if need is None:
        return None
    amount = need // spec.nodes if limit == "MaxTRESPerNode" else need
    if limit.endswith("Mins"):
        amount *= parse_slurm_minutes(spec.time_limit) or 0
    setting = {"node": "", "gres/gpu": f" of {need // spec.nodes} GPUs", "cpu": f" of {need // spec.nodes} CPUs"}
    asked_for = f"nodes = {spec.nodes}{setting[resource]}"
    unit = "" if amount == spec.nodes else f", {resource}={amount}"
    if limit in AT_MOST and amount > most:
        return asked_for + unit, f"allows {most} {AT_MOST[limit]}", "fewer; or another QOS or account that allows it"
    if limit == "MinTRES" and resource in EXACT and amount < most:
        return asked_for + unit, f"wants {most} of a job", "more, or another QOS"
    return None


def _need(spec: JobSpec) -> dict[str, int]:
    """What the job takes of each resource, at the least."""
    numbers = [int(match[1]) for each in spec.extra if (match := GPUS.fullmatch(each))]
    gpus, cpus = max([spec.gpus_per_node, *numbers]), spec.processes_per_node * spec.cpus_per_process
    return {"node": spec.nodes, "gres/gpu": spec.nodes * gpus, "cpu": spec.nodes * cpus}
