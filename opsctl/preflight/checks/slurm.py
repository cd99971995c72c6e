"""Settings with which Slurm refuses a train or never starts it."""

import re
from collections.abc import Iterator, Set
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain

from opsctl.base.model import Accounting, JobSpec, Partition, Reservation
from opsctl.base.nodesets import fold, nodeset, union
from opsctl.base.units import parse_slurm_minutes
from opsctl.launch.render import directives
from opsctl.preflight.effective_limits import list_qos
from opsctl.preflight.facts import ClusterFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, error_if, find_near, note, warning
from opsctl.slurm.batch_options import BatchOption, list_options

OURS = frozenset({"comment", "error", "open-mode", "output", "parsable", "requeue", "test-only", "wait", "wrap"})
"""sbatch options that opsctl sets itself, or that would hide the submitted job from opsctl."""
FEATURE = re.compile(r"[^\s&|*\[\](),!]+")
COUNT = re.compile(r"\*\d+")
"""The number of nodes with a feature: `rack1*2`."""
MIN_SPARE_SHARE = 0.05
OUT_OF_SERVICE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT"})
"""Node states in which no job starts. A node that does not answer (`*`) may answer again soon."""


def partition(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Report problems only if no partition fits: Slurm starts the job in the first partition that can."""
    if facts.cluster is None:
        return
    known = {partition.name: partition for partition in facts.cluster.partitions}
    names = find_partitions(request.spec, facts.cluster.partitions)
    if not names:
        yield error("partition.none", known=tuple(known))
    judged = [list(_one_partition(request.spec, name, known, facts.cluster.accounting)) for name in names]
    if all(judged):
        yield from chain.from_iterable(judged)


def find_partitions(spec: JobSpec, partitions: tuple[Partition, ...]) -> list[str]:
    if spec.partition:
        return spec.partition.split(",")
    return [partition.name for partition in partitions if partition.is_default]


def _one_partition(
    spec: JobSpec, name: str, known: dict[str, Partition], accounting: Accounting | None
) -> Iterator[Problem]:
    partition = known.get(name)
    if partition is None:
        yield error("partition.unknown", name=name, near=find_near(name, known), known=tuple(known))
        return
    if not partition.is_up:
        yield error("partition.down", name=name)
    qos_in_force = list_qos(spec, accounting, partition) if accounting else []
    lifted = set(chain.from_iterable(qos.flags for qos in qos_in_force))
    most = partition.nodes
    if partition.max_nodes is not None and "PartitionMaxNodes" not in lifted:
        most = min(most, partition.max_nodes)
    if spec.nodes > most:
        yield error("partition.nodes", nodes=spec.nodes, name=name, most=most)
    minutes, allowed = parse_slurm_minutes(spec.time_limit), partition.max_minutes
    if minutes is not None and allowed is not None and minutes > allowed and "PartitionTimeLimit" not in lifted:
        yield error("partition.time_limit", time_limit=spec.time_limit, name=name, most=as_slurm(allowed))


def as_slurm(minutes: int) -> str:
    """Return a time limit in Slurm's notation."""
    days, rest = divmod(minutes, 1440)
    clock = f"{rest // 60:02}:{rest % 60:02}:00"
    return f"{days}-{clock}" if days else clock


def constraint(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Slurm refuses a feature that no node has. In `a|b` one of the features is enough."""
    wanted = request.spec.constraint
    known = facts.cluster.features if facts.cluster else frozenset()
    if not wanted or not known:
        return
    alternatives = [set(FEATURE.findall(COUNT.sub("", part))) for part in wanted.split("|")]
    missing = [sorted(names - known) for names in alternatives]
    if not any(missing):
        return
    names = ", ".join(sorted(set(chain.from_iterable(missing))))
    is_certain = all(missing) and not set("!()").intersection(wanted)
    near = find_near(names, known)
    yield error_if(is_certain, "constraint.unknown", wanted=wanted, names=names, near=near, known=tuple(sorted(known)))


def exclude(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    if facts.cluster is None:
        return
    spec = request.spec
    all_nodes, excluded = union(node.name for node in facts.cluster.nodes), nodeset(spec.exclude)
    left = len(all_nodes - excluded)
    if unknown := excluded - all_nodes:
        yield error("exclude.unknown", nodes=str(unknown))
    elif excluded and left < spec.nodes:
        yield error("exclude.too_many", excluded=str(excluded), left=left, nodes=spec.nodes)


def in_service(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Count the nodes of the train's partitions, without the nodes that the train excludes."""
    if facts.cluster is None or not facts.cluster.members:
        return
    needed, excluded = request.spec.nodes, nodeset(request.spec.exclude)
    usable = set(facts.cluster.members) - set(excluded)
    nodes = [node for node in facts.cluster.nodes if node.name in usable]
    out = [node.name for node in nodes if OUT_OF_SERVICE.intersection(node.state.rstrip("*").split("+"))]
    left = len(nodes) - len(out)
    if left < needed <= len(nodes):
        yield warning("in-service.too_few", nodes=needed, usable=len(nodes), left=left, out=fold(out))
    elif request.has_gpus and needed <= left < needed * (1 + MIN_SPARE_SHARE):
        yield note("in-service.no_spare", nodes=needed, left=left, spare=left - needed)


def after(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Slurm treats a dependency on an unknown job as fulfilled, and starts the train at once."""
    job_id = request.spec.after
    if not job_id or facts.cluster is None:
        return
    known = {job.id for job in facts.cluster.jobs} | {job.array for job in facts.cluster.jobs}
    if job_id.partition("_")[0] not in known:
        yield error("after.unknown", job=job_id)


def extra(request: LaunchRequest, _: Facts) -> Iterator[Problem]:
    """Refuse options that opsctl sets itself, also abbreviated. Other options are allowed, such as a GPU type."""
    directives_of_opsctl = directives(replace(request.spec, extra=()))
    own_options = {line.partition("=")[0].removeprefix("--") for line in directives_of_opsctl} | OURS
    for line in request.spec.extra:
        for option in list_options(line):
            yield from _judge_option(option, own_options)


def _judge_option(option: BatchOption, own_options: Set[str]) -> Iterator[Problem]:
    own = min(option.names & own_options, default="")
    if not option.text.startswith("-"):
        yield error("extra.no_option", option=option.text)
    elif own and option.is_exact and option.text == f"--{own}":
        yield error("extra.own", name=own)
    elif own:
        yield error("extra.short", option=option.text, name=own)
    elif len(option.names) > 1:
        candidates = tuple(f"--{name}" for name in sorted(option.names))
        yield warning("extra.ambiguous", option=option.text, candidates=candidates)


def reservation(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Slurm does not start a job that would still run when a reservation of its nodes begins."""
    if facts.cluster is None:
        return
    if request.spec.reservation:
        yield from _check_own_reservation(request, facts, facts.cluster)
    else:
        yield from _check_blocking_reservations(request, facts, facts.cluster)


def _check_own_reservation(request: LaunchRequest, facts: Facts, cluster: ClusterFacts) -> Iterator[Problem]:
    name, spec = request.spec.reservation, request.spec
    known = {entry.name: entry for entry in cluster.reservations}
    reservation = known.get(name)
    if reservation is None:
        yield error("reservation.unknown", name=name, known=tuple(known) or "none")
        return
    if reservation.node_count < spec.nodes:
        yield error("reservation.too_small", name=name, has=reservation.node_count, nodes=spec.nodes)
    if not _is_ours(reservation, request, facts):
        owners = (*reservation.users, *reservation.accounts)
        yield error("reservation.not_yours", name=name, owners=owners, user=facts.user)
    limit = timedelta(seconds=request.limit_s)
    if reservation.end and limit and reservation.end - facts.now < limit * spec.tasks:
        fits = max(0, (reservation.end - facts.now) // limit)
        yield error_if(
            fits == 0,
            "reservation.ends",
            name=name,
            end=_at(reservation.end),
            fits=fits,
            tasks=spec.tasks,
            time_limit=spec.time_limit,
        )


def _check_blocking_reservations(request: LaunchRequest, facts: Facts, cluster: ClusterFacts) -> Iterator[Problem]:
    limit, spec = timedelta(seconds=request.limit_s), request.spec
    if not limit or not cluster.members:
        return
    free = set(cluster.members) - set(nodeset(spec.exclude))
    for reservation in sorted(cluster.reservations, key=lambda entry: entry.start or facts.now):
        start = reservation.start or facts.now
        if reservation.end is None or reservation.end <= facts.now or start >= facts.now + limit:
            continue
        taken = free & set(nodeset(reservation.nodes))
        left, minutes = len(free) - len(taken), int((start - facts.now).total_seconds() // 60)
        if left < spec.nodes <= len(free):
            yield warning(
                "reservation.blocks",
                time_limit=spec.time_limit,
                name=reservation.name,
                taken=fold(taken),
                start=_at(start),
                end=_at(reservation.end),
                free=len(free),
                left=left,
                nodes=spec.nodes,
                minutes=minutes if minutes > 0 else None,
            )


def _is_ours(reservation: Reservation, request: LaunchRequest, facts: Facts) -> bool:
    """Return whether the user may use the reservation; True if it names neither users nor accounts."""
    if facts.user in reservation.users or not (reservation.users or reservation.accounts):
        return True
    accounts = facts.cluster.accounts if facts.cluster else []
    if request.spec.account:
        accounts = [request.spec.account]
    return bool(set(accounts) & set(reservation.accounts))


def _at(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"
