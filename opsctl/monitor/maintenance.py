"""Findings that maintenance explains: Slurm's reservations with the flag MAINT."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from opsctl.base.errors import OpsctlError
from opsctl.base.findings import Finding, Level
from opsctl.base.model import Reservation
from opsctl.base.nodesets import expand, union
from opsctl.slurm.commands import Slurm


def read_maintenance(slurm: Slurm, findings: Iterable[Finding], now: datetime, problems: list[str]) -> frozenset[str]:
    """Return the keys that maintenance explains; while Slurm does not answer, none, and a line in `problems`."""
    try:
        return find_maintenance(findings, slurm.reservations(), now)
    except OpsctlError as error:
        problems.append(error.message)
        return frozenset()


def find_maintenance(findings: Iterable[Finding], reservations: Iterable[Reservation], now: datetime) -> frozenset[str]:
    """Return the keys about nodes under maintenance, and about waits of trains meanwhile. Pure."""
    active = [
        reservation
        for reservation in reservations
        if "MAINT" in reservation.flags and (reservation.start or now) <= now < (reservation.end or now)
    ]
    nodes = set(union(reservation.nodes for reservation in active))
    muted = set()
    for finding in findings:
        is_wait = finding.key.startswith("slurm_status/") and finding.level is not Level.CRITICAL
        is_node = bool(finding.node) and set(expand(finding.node)) <= nodes
        if active and (is_wait or is_node):
            muted.add(finding.key)
    return frozenset(muted)
