"""The stop request: the file that asks an attempt to stop. Trainers poll this file, and finalization reads it."""

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial

from opsctl.base.errors import RunDirError
from opsctl.state.records import decode, encode, load_state
from opsctl.state.run_dir import Attempt, RunDir


class StopKind(StrEnum):
    """Why an attempt is to stop. The kinds stand in order of rank: a higher kind replaces a lower one."""

    REFUSED = "refused"
    """Another user could have written the scripts. The body was not started."""
    SKIPPED = "skipped"
    """The finalization of an earlier attempt ended the train. The body was not started."""
    NODE_REFUSED = "node-refused"
    """A node of the allocation is faulty. The body was not started."""
    KILL = "kill"
    PAUSE = "pause"
    HUNG = "hung"
    """The attempt hangs, and opsctl is about to cancel it."""
    RESTART = "restart"
    """A person asked for a restart in the same allocation."""
    TERM = "term"
    """Slurm ends the job: cancelled, preempted, or out of time."""
    TIME_LIMIT = "time-limit"
    """The time limit is near, and enough time to save is left."""
    UNKNOWN = "unknown"
    """The file is there and cannot be read. What people ask for stands in the switches as well."""

    def is_above(self, other: "StopKind") -> bool:
        order = list(StopKind)
        return order.index(self) < order.index(other)


FINAL = frozenset(set(StopKind) - {StopKind.SKIPPED, StopKind.NODE_REFUSED, StopKind.HUNG, StopKind.RESTART})
"""Stop requests after which the task ends, however the attempt has ended."""
LETS_START = frozenset({StopKind.TIME_LIMIT, StopKind.UNKNOWN})
"""Stop requests because of which no body is left out: near the limit there is time for steps, and a damaged file stops
no training. The guard itself knows what it has asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPlan:
    """When an attempt gets a signal and when its ranks are ended; None: never."""

    signal: str = ""
    """The signal that the ranks get, such as TERM; empty: none."""
    signal_at: datetime | None = None
    kill_at: datetime | None = None


NO_STEPS = StopPlan()


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest(StopPlan):
    reason: StopKind
    why: str
    at: datetime | None = None
    """When the request was made; None if unknown, as without a guard."""


def read_stop_request(attempt: Attempt) -> StopRequest | None:
    """Return the stop request; None without one."""
    if not attempt.path.is_dir():
        return None  # where no attempt can be recorded, nobody can have asked; the body runs all the same
    try:
        return load_state(partial(decode, StopRequest), attempt.stop_request)
    except RunDirError as error:
        return StopRequest(reason=StopKind.UNKNOWN, why=error.message)


def read_refusal(attempt: Attempt) -> StopRequest | None:
    """Return the stop request because of which the body must not start."""
    stop_request = read_stop_request(attempt)
    return None if stop_request is None or stop_request.reason in LETS_START else stop_request


def request_stop(
    run: RunDir, attempt: Attempt, reason: StopKind, why: str, *, at: datetime | None = None, plan: StopPlan = NO_STEPS
) -> bool:
    """Ask the trainer to save and stop, `at` a time. Return whether the request is new; a lower kind changes nothing.

    `plan` says which steps follow.
    """
    current = read_stop_request(attempt)
    if current is not None and not reason.is_above(current.reason):
        return False
    request = StopRequest(
        reason=reason, why=why, at=at, signal=plan.signal, signal_at=plan.signal_at, kill_at=plan.kill_at
    )
    run.write(attempt.stop_request, json.dumps(encode(request, is_sparse=True)) + "\n")
    return True
