"""The part of the world that a diagnosed cause lies in: the colour of an attempt on the report page."""

from __future__ import annotations

from functools import cache

from opsctl.diagnosis.causes import CauseKind, causes

HARDWARE = frozenset({CauseKind.NODE, CauseKind.GPU, CauseKind.NETWORK, CauseKind.STORAGE})
PROGRAM = frozenset({CauseKind.CODE, CauseKind.CONFIG, CauseKind.DATA, CauseKind.NUMERIC, CauseKind.MEMORY})
OUTSIDE = frozenset({CauseKind.SLURM, CauseKind.PREEMPTED, CauseKind.TIME_LIMIT, CauseKind.SWITCH})
OUTCOMES = {
    "node-failed": "hardware",
    "node-refused": "hardware",
    "NODE_FAIL": "hardware",
    "BOOT_FAIL": "hardware",
    "timed-out": "outside",
    "TIMEOUT": "outside",
    "OUT_OF_MEMORY": "program",
    "idle": "program",
}
"""Outcomes of attempts and states of jobs that name the part by themselves."""


@cache
def _kinds() -> dict[str, CauseKind]:
    return {cause.name: cause.kind for cause in causes()}


def find_part(cause: str, outcome: str) -> str:
    """Return `hardware`, `program` or `outside`, by the diagnosed cause, else by the outcome, else empty."""
    kind = _kinds().get(cause) if cause else None
    parts = {"hardware": HARDWARE, "program": PROGRAM, "outside": OUTSIDE}
    return next((part for part, kinds in parts.items() if kind in kinds), OUTCOMES.get(outcome, ""))
