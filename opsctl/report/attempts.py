"""The attempts of a train: what the journal, their own records and accounting say of them, before any log is read."""

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
another attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """An attempt. Times in seconds since the epoch."""

    attempt: str
    nodes: str
    begin: float
    end: float | None = None
    outcome: str = ""
    why: str = ""
    node_count: int = 0
    offset: int | None = None
    """Where in the log it began."""


def collect_attempts(run: RunDir, events: Sequence[Event]) -> list[AttemptFacts]:
    """In the order of the journal. A controller that was killed uses ids again, so a name may come twice."""
    attempt_factses: list[AttemptFacts] = []
    for event in events:
        if event.kind is EventKind.ATTEMPT_STARTED:
            attempt_factses.append(
                AttemptFacts(
                    attempt=str(event.data["attempt"]), nodes=str(event.data["nodes"]), begin=event.when.timestamp()
                )
            )
        elif event.kind is EventKind.ATTEMPT_FINALIZED:
            place = next(
                (
                    at
                    for at in reversed(range(len(attempt_factses)))
                    if attempt_factses[at].attempt == event.data["attempt"]
                ),
                None,
            )
            if place is not None and not attempt_factses[place].outcome:
                at = max(event.when.timestamp(), attempt_factses[place].begin)
                outcome, why = str(event.data["outcome"]), str(event.data["why"])
                attempt_factses[place] = replace(attempt_factses[place], end=at, outcome=outcome, why=why)
    last = {attempt.attempt: at for at, attempt in enumerate(attempt_factses)}
    return [
        _recorded(run, attempt) if last[attempt.attempt] == at else attempt
        for at, attempt in enumerate(attempt_factses)
    ]


def _recorded(run: RunDir, known: AttemptFacts) -> AttemptFacts:
    """With what start.json and end.json say more exactly."""
    attempt = run.attempt(known.attempt)
    if began := read_start(attempt):
        known = replace(known, begin=min(known.begin, began.at.timestamp()), node_count=began.node_count,
                        offset=began.main_log)  # fmt: skip
    if known.outcome and (ended := read_end(attempt)):
        known = replace(known, end=max(known.begin, ended.ended.timestamp()))
    return known


def with_jobs(known: Sequence[AttemptFacts], jobs: Sequence[JobRun]) -> list[AttemptFacts]:
    """The same with what accounting remembers: when an attempt ended that nobody finalized, and attempts that never
    got so far
    as to say that they began, as when a node dies at once."""
    attempt_factses, counter = list(known), Counter[str]()
    first = min((attempt.begin for attempt in known), default=0.0)
    for job in jobs:
        name = f"{job.job}.{counter[job.job]}"
        counter[job.job] += job.begin is not None
        if job.begin is None or job.end is None or job.begin < first - NEAR:
            continue
        place = next((at for at, attempt in enumerate(attempt_factses) if attempt.attempt == name), None)
        if place is None:
            later = next(
                (at for at, attempt in enumerate(attempt_factses) if attempt.begin > job.begin), len(attempt_factses)
            )
            attempt_factses.insert(later, _unseen(name, job))
        elif attempt_factses[place].end is None and abs(attempt_factses[place].begin - job.begin) < NEAR:
            attempt_factses[place] = replace(
                attempt_factses[place], end=job.end, outcome=job.state.value, why="Slurm says so"
            )
    return attempt_factses


def _unseen(name: str, job: JobRun) -> AttemptFacts:
    assert job.begin is not None
    return AttemptFacts(
        attempt=name,
        nodes=job.nodes,
        begin=job.begin,
        end=job.end,
        outcome=job.state.value,
        why="only Slurm knows of it",
        node_count=job.node_count,
    )
