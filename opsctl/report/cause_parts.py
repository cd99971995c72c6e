"""The part of the world that a diagnosed cause lies in: the colour of an attempt on the report page."""

from __future__ import annotations

from functools import cache

from opsctl.diagnosis.causes import CauseKind, causes

HARDWARE = frozenset({CauseKind.NODE, CauseKind.GPU, CauseKind.NETWORK, CauseKind.STORAGE})
PROGRAM = frozenset({CauseKind.CODE, CauseKind.CONFIG, CauseKind.DATA, CauseKind.NUMERIC, CauseKind.MEMORY})
OUTSIDE = frozenset({CauseKind.SLURM, CauseKind.PREEMPTED, CauseKind.TIME_LIMIT, CauseKind.SWITCH})


@cache
def _kinds() -> dict[str, CauseKind]:
    return {cause.name: cause.kind for cause in causes()}


def find_part(cause: str) -> str:
    """Return `hardware`, `program` or `outside`; empty for a cause of no known part, and without a diagnosis."""
    kind = _kinds().get(cause) if cause else None
    parts = {"hardware": HARDWARE, "program": PROGRAM, "outside": OUTSIDE}
    return next((part for part, kinds in parts.items() if kind in kinds), "")
