"""Carry out what opsctl proposed for a train, as `[policy]` says, once a person confirms."""

from collections.abc import Sequence
from datetime import datetime

from opsctl.guard.node_care import NodeCare
from opsctl.launch.train_arrays import TrainArrays
from opsctl.state.events import AttemptFinalized, Event, ExclusionDecided, RequestDone
from opsctl.state.lease import lease
from opsctl.state.reasons import as_written
from opsctl.watchdogs.failures import find_exclusions, find_hold

STEPS = {"propose-hold": "hold the queued tasks", "propose-cancel": "cancel the queued tasks"}
"""By the action at the end of an attempt: what a person confirms."""


def find_proposals(events: Sequence[Event], now: datetime) -> dict[str, AttemptFinalized | ExclusionDecided]:
    """Return what waits for a person, by what would be done. Pure."""
    hold = find_hold(events)
    proposals: dict[str, AttemptFinalized | ExclusionDecided] = {}
    for decided in find_exclusions(events, now).values():
        if decided.proposed:
            proposals[f"exclude {decided.nodes}"] = decided
        elif decided.to_drain:
            proposals[f"drain {decided.to_drain}"] = decided
    if hold and hold.end is None and hold.event.action in STEPS:
        proposals[STEPS[hold.event.action]] = hold.event
    return proposals


def confirm_proposals(arrays: TrainArrays, care: NodeCare, by: str) -> list[str]:
    """Carry out every proposal for a train, and journal who confirmed; return what was done. Raises OpsctlError."""
    done: list[str] = []
    with lease(arrays.run.path, arrays.journal.clock):
        for proposal in find_proposals(arrays.journal.events(), arrays.journal.clock.now()).values():
            arrays.journal.append(RequestDone(verb="confirm", by=by))
            if isinstance(proposal, ExclusionDecided):
                decided = care.confirm(arrays, proposal)
                arrays.note(decided)
                done += decided.done
            elif proposal.action == "propose-hold":
                done.append(f"held {', '.join(arrays.hold(as_written(by))) or 'nothing: no task is queued'}")
            else:
                ids = arrays.cancel(as_written(by), queued_only=True)
                done.append(f"cancelled {', '.join(ids) or 'nothing: no task is queued'}")
    return done
