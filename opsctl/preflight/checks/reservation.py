"""Reservations: one that the train asks for, and those that are in its way."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from opsctl.model import Reservation
from opsctl.nodesets import fold, nodeset
from opsctl.preflight.facts import ClusterFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning
from opsctl.units import parse_slurm_minutes


def reservation(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """A job that would still run when a reservation of its nodes begins is not started before that ends."""
    if facts.cluster is None:
        return
    if request.spec.reservation:
        yield from _asked_for(request, facts, facts.cluster)
    else:
        yield from _in_the_way(request, facts, facts.cluster)


def _asked_for(request: LaunchRequest, facts: Facts, cluster: ClusterFacts) -> Iterator[Problem]:
    name, spec = request.spec.reservation, request.spec
    known = {reservation.name: reservation for reservation in cluster.reservations}
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
    if not _is_ours(found, request, facts):
        yield error(f"[slurm] reservation: {name!r} is for {_owners(found)}, not for {facts.user}", "ask to be let in")
    limit = _limit(request)
    if found.end and limit and (left := found.end - facts.now) < limit * spec.tasks:
        fits = max(0, left // limit)
        say = error if fits == 0 else warning
        yield say(
            f"[slurm] reservation: {name!r} ends at {_at(found.end)}: {fits} of {spec.tasks} tasks of"
            f" {spec.time_limit} fit into it, and none starts that does not",
            "have it made longer, or queue the other tasks outside it",
        )


def _in_the_way(request: LaunchRequest, facts: Facts, cluster: ClusterFacts) -> Iterator[Problem]:
    limit = _limit(request)
    if limit is None or not cluster.members:
        return
    free = set(cluster.members) - set(nodeset(request.spec.exclude))
    for reservation in sorted(cluster.reservations, key=lambda found: found.start or facts.now):
        if (
            reservation.end is None
            or reservation.end <= facts.now
            or (reservation.start or facts.now) >= facts.now + limit
        ):
            continue
        taken = free & set(nodeset(reservation.nodes))
        left, start = len(free) - len(taken), reservation.start or facts.now
        if left < request.spec.nodes <= len(free):
            yield warning(
                f"[slurm] time_limit = {request.spec.time_limit}: reservation {reservation.name!r} takes"
                f" {fold(taken)} from"
                f" {_at(start)} to {_at(reservation.end)}; of {len(free)} nodes {left} are left, and"
                f" {request.spec.nodes} are"
                " needed: no task starts that would still run then",
                _before(start, facts),
            )


def _before(start: datetime, facts: Facts) -> str:
    minutes = int((start - facts.now).total_seconds() // 60)
    return f"wait, or use the time until then: time_limit below {minutes} minutes" if minutes > 0 else "wait"


def _is_ours(reservation: Reservation, request: LaunchRequest, facts: Facts) -> bool:
    """Where a reservation names neither users nor accounts, we do not know for whom it is."""
    if facts.user in reservation.users or not (reservation.users or reservation.accounts):
        return True
    mine = {request.spec.account} if request.spec.account else set(facts.cluster.accounts if facts.cluster else ())
    return bool(mine & set(reservation.accounts))


def _owners(reservation: Reservation) -> str:
    return ", ".join([*reservation.users, *reservation.accounts])


def _limit(request: LaunchRequest) -> timedelta | None:
    minutes = parse_slurm_minutes(request.spec.time_limit)
    return timedelta(minutes=minutes) if minutes else None


def _at(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"
