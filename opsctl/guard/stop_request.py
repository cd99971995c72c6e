"""Why an attempt is to stop: the one file that a foreign trainer polls, and what finalization later reads the wish
from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from opsctl.state.run_dir import Attempt, RunDir


class StopKind(StrEnum):
    """Of several wishes the one further up stands."""

    REFUSED = "refused"
    """What would be run could have been written by others. The body was not started."""
    SKIPPED = "skipped"
    """How an earlier attempt was finalized leaves nothing to do. The body was not started."""
    NODE_REFUSED = "node-refused"
    """A node of the allocation is faulty. The body was not started."""
    KILL = "kill"
    PAUSE = "pause"
    HUNG = "hung"
    """It hangs, and is about to be cancelled for that."""
    TERM = "term"
    """Slurm ends the job: cancelled, preempted, or out of time."""
    TIME_LIMIT = "time-limit"
    """The limit is near, and there is time left to save."""

    def is_above(self, other: StopKind) -> bool:
        order = list(StopKind)
        return order.index(self) < order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    reason: StopKind
    why: str


def read_stop_request(attempt: Attempt) -> StopRequest | None:
    """What this attempt was asked, or None for nothing that can be understood."""
    try:
        given = json.loads(attempt.stop_request.read_text())
        return StopRequest(reason=StopKind(given["reason"]), why=str(given["why"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def request_stop(run: RunDir, attempt: Attempt, reason: StopKind, why: str) -> bool:
    """Ask the trainer of this attempt to save and stop; whether that is new. A weaker wish changes nothing."""
    before = read_stop_request(attempt)
    if before is not None and not reason.is_above(before.reason):
        return False
    run.write(attempt.stop_request, json.dumps({"reason": reason.value, "why": why}) + "\n")
    return True
