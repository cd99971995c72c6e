"""The lives of a train: what the journal, their own records and accounting say of them, before any log is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opsctl.guard.attempt_record import read_start
from opsctl.guard.finalize import read_end
from opsctl.report.sacct import JobRun
from opsctl.state.journal import Event, EventKind
from opsctl.state.run_dir import RunDir

NEAR = 3600.0
"""Seconds between what two say of the same start. A controller that was killed uses ids again: what is further is
another life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeFacts:
    """A life. Times in seconds since the epoch."""

    life: str
    nodes: str
    begin: float
    end: float | None = None
    outcome: str = ""
    why: str = ""
    node_count: int = 0
    offset: int | None = None
    """Where in the log it began."""


def collect_lives(run: RunDir, events: Sequence[Event]) -> list[LifeFacts]:
    """In the order of the journal. A controller that was killed uses ids again, so a name may come twice."""
    found: list[LifeFacts] = []
    for event in events:
        if event.kind is EventKind.LIFE_STARTED:
            found.append(
                LifeFacts(life=str(event.data["life"]), nodes=str(event.data["nodes"]), begin=event.when.timestamp())
            )
        elif event.kind is EventKind.LIFE_SETTLED:
            place = next((at for at in reversed(range(len(found))) if found[at].life == event.data["life"]), None)
            if place is not None and not found[place].outcome:
                at = max(event.when.timestamp(), found[place].begin)
                outcome, why = str(event.data["outcome"]), str(event.data["why"])
                found[place] = replace(found[place], end=at, outcome=outcome, why=why)
    last = {life.life: at for at, life in enumerate(found)}
    return [_recorded(run, life) if last[life.life] == at else life for at, life in enumerate(found)]


def _recorded(run: RunDir, known: LifeFacts) -> LifeFacts:
    """With what start.json and end.json say more exactly."""
    life = run.life(known.life)
    if began := read_start(life):
        known = replace(known, begin=min(known.begin, began.at.timestamp()), node_count=began.node_count,
                        offset=began.main_log)  # fmt: skip
    if known.outcome and (ended := read_end(life)):
        known = replace(known, end=max(known.begin, ended.ended.timestamp()))
    return known


def with_jobs(known: Sequence[LifeFacts], jobs: Sequence[JobRun]) -> list[LifeFacts]:
    """The same with what accounting remembers: when a life ended that nobody settled, and lives that never got so far
    as to say that they began, as when a node dies at once."""
    found, seen = list(known), Counter[str]()
    first = min((life.begin for life in known), default=0.0)
    for job in jobs:
        name = f"{job.job}.{seen[job.job]}"
        seen[job.job] += job.begin is not None
        if job.begin is None or job.end is None or job.begin < first - NEAR:
            continue
        place = next((at for at, life in enumerate(found) if life.life == name), None)
        if place is None:
            later = next((at for at, life in enumerate(found) if life.begin > job.begin), len(found))
            found.insert(later, _unseen(name, job))
        elif found[place].end is None and abs(found[place].begin - job.begin) < NEAR:
            found[place] = replace(found[place], end=job.end, outcome=job.state.value, why="Slurm says so")
    return found


def _unseen(name: str, job: JobRun) -> LifeFacts:
    assert job.begin is not None
    return LifeFacts(
        life=name, nodes=job.nodes, begin=job.begin, end=job.end, outcome=job.state.value, why="only Slurm knows of it",
        node_count=job.node_count,
    )  # fmt: skip
