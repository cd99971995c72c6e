"""What the attempts of a train add up to: running time since a moment, and attempts that do not advance the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from opsctl.base.errors import OpsctlError
from opsctl.state.files import MAX_RECORD_BYTES, read_json
from opsctl.watchdogs.context import WatchedTrain

REQUESTED_ENDS = frozenset(
    {"stopped", "cancelled", "paused", "finished", "killed", "refused", "node-refused", "skipped"}
)
"""Outcomes that say nothing about progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """The progress of one ended attempt, from its end.json."""

    name: str
    resume_step: int | None
    highest_step: int | None
    new_checkpoint: bool
    counts_anew: bool = False
    resumed_from: str = ""


def measure_running_s(train: WatchedTrain, since: datetime | None, now: datetime) -> float:
    """Return the seconds for which tasks of the train ran since `since`, all attempts together.

    An attempt whose end is unknown, and that does not run, counts until the start of the next one at most, otherwise
    not at all.
    """
    if train.snapshot is None:
        return 0.0
    history, job = train.snapshot.history, train.running
    spans: dict[str, tuple[datetime, datetime]] = {}
    started = list(history.started.items())
    for (name, start), (_, next_start) in pairwise([*started, ("", now)]):
        ended = history.finalized.get(name)
        end = ended.when if ended else next_start
        if ended or (name, start) != started[-1]:
            spans[name] = (start, min(end, now))
    if job and job.start:
        spans[job.attempt] = (job.start, now)
    return sum(max(0.0, (end - max(start, since or start)).total_seconds()) for start, end in spans.values())


def read_ended_attempts(train: WatchedTrain, count: int) -> list[EndedAttempt]:
    """Return the progress of the last `count` attempts whose end says something, the newest last."""
    ended: list[EndedAttempt] = []
    names = list(train.snapshot.history.started) if train.snapshot else []
    for name in reversed(names):
        if len(ended) == count:
            break
        if attempt := _read_end(train, name):
            ended.append(attempt)
    return ended[::-1]


def _read_end(train: WatchedTrain, name: str) -> EndedAttempt | None:
    try:
        fields = read_json(train.run.attempt(name).end, MAX_RECORD_BYTES)
        if fields["outcome"] in REQUESTED_ENDS:
            return None
        steps = {key: fields[key] if type(fields[key]) is int else None for key in ("resume_step", "highest_step")}
        return EndedAttempt(
            name=name,
            new_checkpoint=bool(fields["new_checkpoint"]),
            counts_anew=bool(fields.get("counts_anew")),
            resumed_from=str(fields.get("resumed_from", "")),
            **steps,
        )
    except (OSError, ValueError, KeyError, TypeError, OpsctlError):
        return None


def is_standstill(attempts: Sequence[EndedAttempt], count: int) -> bool:
    """Return whether `count` attempts all went on from the same step, and none left a checkpoint.

    The steps of trainers that count anew show nothing, and neither do they where the named checkpoint changes.
    """
    starts = [attempt.resume_step for attempt in attempts if attempt.resume_step is not None]
    if len(attempts) < count or len(starts) < 2 or any(attempt.new_checkpoint for attempt in attempts):
        return False
    named = {attempt.resumed_from for attempt in attempts if attempt.resumed_from}
    if len(named) > 1 or any(attempt.counts_anew for attempt in attempts):
        return False
    return max(starts) <= starts[0]
