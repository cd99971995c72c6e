"""Reservations: one that the train asks for, and those that are in its way."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from opsctl.model import Reservation
from opsctl.nodesets import fold, nodeset
from opsctl.preflight.facts import ClusterFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning
from opsctl.units import parse_slurm_minutes


def reservation(order: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A job that would still run when a reservation of its nodes begins is not started before that ends."""
    if facts.cluster is None:
        return
    if order.spec.reservation:
        yield from _asked_for(order, facts, facts.cluster)
    else:
        yield from _in_the_way(order, facts, facts.cluster)


def _asked_for(order: LaunchRequest, facts: Facts, cluster: ClusterFacts) -> Iterator[Problem]:
    name, spec = order.spec.reservation, order.spec
    known = {each.name: each for each in cluster.reservations}
    if (found := known.get(name)) is None:
        yield error(
            f"[slurm] reservation: there is no {name!r}; there are: {', '.join(known) or 'none'}",
            "correct it, or leave it out",
        )
        return
    if found.node_count < spec.nodes:
        yield error(
            f"[slurm] reservation: {name!r} has {found.node_count} nodes, and the train needs {spec.nodes}",
            "fewer nodes, or a larger reservation",
        )
    if not _is_ours(found, order, facts):
        yield error(f"[slurm] reservation: {name!r} is for {_owners(found)}, not for {facts.user}", "ask to be let in")
    limit = _limit(order)
    if found.end and limit and (left := found.end - facts.now) < limit * spec.tasks:
        fits = max(0, left // limit)
        say = error if fits == 0 else warning
        yield say(
            f"[slurm] reservation: {name!r} ends at {_at(found.end)}: {fits} of {spec.tasks} tasks of"
            f" {spec.time_limit} fit into it, and none starts that does not",
            "have it made longer, or queue the other tasks outside it",
        )


def _in_the_way(order: LaunchRequest, facts: Facts, cluster: ClusterFacts) -> Iterator[Problem]:
    limit = _limit(order)
    if limit is None or not cluster.members:
        return
    free = set(cluster.members) - set(nodeset(order.spec.exclude))
    for each in sorted(cluster.reservations, key=lambda found: found.start or facts.now):
        if each.end is None or each.end <= facts.now or (each.start or facts.now) >= facts.now + limit:
            continue
        taken = free & set(nodeset(each.nodes))
        left, start = len(free) - len(taken), each.start or facts.now
        if left < order.spec.nodes <= len(free):
            yield warning(
                f"[slurm] time_limit = {order.spec.time_limit}: reservation {each.name!r} takes {fold(taken)} from"
                f" {_at(start)} to {_at(each.end)}; of {len(free)} nodes {left} are left, and {order.spec.nodes} are"
                " needed: no task starts that would still run then",
                _before(start, facts),
            )


def _before(start: datetime, facts: Facts) -> str:
    minutes = int((start - facts.now).total_seconds() // 60)
    return f"wait, or use the time until then: time_limit below {minutes} minutes" if minutes > 0 else "wait"


def _is_ours(found: Reservation, order: LaunchRequest, facts: Facts) -> bool:
    """Where a reservation names neither users nor accounts, we do not know for whom it is."""
    if facts.user in found.users or not (found.users or found.accounts):
        return True
    mine = {order.spec.account} if order.spec.account else set(facts.cluster.accounts if facts.cluster else ())
    return bool(mine & set(found.accounts))


def _owners(found: Reservation) -> str:
    return ", ".join([*found.users, *found.accounts])


def _limit(order: LaunchRequest) -> timedelta | None:
    minutes = parse_slurm_minutes(order.spec.time_limit)
    return timedelta(minutes=minutes) if minutes else None


def _at(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"
