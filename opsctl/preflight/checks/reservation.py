"""Reservations: the reservation that the train uses, and reservations of other users that block it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from opsctl.base.model import Reservation
from opsctl.base.nodesets import fold, nodeset
from opsctl.base.units import parse_slurm_minutes
from opsctl.preflight.facts import ClusterFacts, Facts
from opsctl.preflight.problem import LaunchRequest, Problem, error, warning


def reservation(request: LaunchRequest, facts: Facts) -> Iterator[Problem]:
    """Slurm does not start a job that would still run when a reservation of its nodes begins."""
    if facts.cluster is None:
        return
    if request.spec.reservation:
        yield from _check_own(request, facts, facts.cluster)
    else:
        yield from _check_blocking(request, facts, facts.cluster)


def _check_own(request: LaunchRequest, facts: Facts, cluster: ClusterFacts) -> Iterator[Problem]:
    name, spec = request.spec.reservation, request.spec
    known = {entry.name: entry for entry in cluster.reservations}
    reservation = known.get(name)
    if reservation is None:
        yield error(
            f"[slurm] reservation: there is no {name!r}; there are: {', '.join(known) or 'none'}",
            "correct the name, or leave reservation out",
        )
        return
    if reservation.node_count < spec.nodes:
        yield error(
            f"[slurm] reservation: {name!r} has {reservation.node_count} nodes, but the train needs {spec.nodes}",
            "set fewer nodes, or ask for a larger reservation",
        )
    if not _is_ours(reservation, request, facts):
        yield error(
            f"[slurm] reservation: {name!r} is for {_owners(reservation)}, not for {facts.user}",
            "ask for access to the reservation",
        )
    limit = _limit(request)
    if reservation.end and limit and reservation.end - facts.now < limit * spec.tasks:
        fits = max(0, (reservation.end - facts.now) // limit)
        problem = error if fits == 0 else warning
        yield problem(
            f"[slurm] reservation: {name!r} ends at {_at(reservation.end)}: {fits} of {spec.tasks} tasks of"
            f" {spec.time_limit} fit, and Slurm starts no other",
            "ask for a longer reservation, or queue the other tasks without it",
        )


def _check_blocking(request: LaunchRequest, facts: Facts, cluster: ClusterFacts) -> Iterator[Problem]:
    limit = _limit(request)
    if limit is None or not cluster.members:
        return
    free = set(cluster.members) - set(nodeset(request.spec.exclude))
    for reservation in sorted(cluster.reservations, key=lambda entry: entry.start or facts.now):
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
                f" {_at(start)} to {_at(reservation.end)}; of {len(free)} nodes {left} are left, but"
                f" {request.spec.nodes} are"
                " needed: Slurm starts no task that would still run then",
                _before(start, facts),
            )


def _before(start: datetime, facts: Facts) -> str:
    minutes = int((start - facts.now).total_seconds() // 60)
    return f"wait, or set time_limit below {minutes} minutes to use the time until then" if minutes > 0 else "wait"


def _is_ours(reservation: Reservation, request: LaunchRequest, facts: Facts) -> bool:
    """Return whether the user may use the reservation; True if it names neither users nor accounts."""
    if facts.user in reservation.users or not (reservation.users or reservation.accounts):
        return True
    accounts = facts.cluster.accounts if facts.cluster else []
    if request.spec.account:
        accounts = [request.spec.account]
    return bool(set(accounts) & set(reservation.accounts))


def _owners(reservation: Reservation) -> str:
    return ", ".join([*reservation.users, *reservation.accounts])


def _limit(request: LaunchRequest) -> timedelta | None:
    minutes = parse_slurm_minutes(request.spec.time_limit)
    return timedelta(minutes=minutes) if minutes else None


def _at(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"
