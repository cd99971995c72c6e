"""Hold and release the queued tasks of a train, also for a user who does not own the job."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.errors import NotAllowed
from opsctl.launch.train_arrays import TrainArrays, TrainSnapshot
from opsctl.state.switches import RequestKind, Switch, arm, request


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The result of a release."""

    arrays: list[str]
    """The released arrays, the last first."""
    excluded: str
    """Every node that is excluded now; empty if no exclusion was requested."""


def hold_or_pause(chain: TrainArrays, reason: str) -> list[str] | None:
    """Hold the queued tasks and return their arrays.

    If the job belongs to another user, arm the pause switch instead and return None.
    """
    try:
        return chain.hold(reason or "opsctl hold")
    except NotAllowed:
        arm(chain.run, Switch.PAUSE, why=reason or "opsctl hold by a user who does not own the job")
        return None


def release_or_request(chain: TrainArrays, snapshot: TrainSnapshot, exclude: str) -> Released | None:
    """Exclude the nodes `exclude`, and release the queued tasks.

    If the job belongs to another user, leave a request for the owner instead and return None.
    """
    try:
        needed = max((job.node_count for job in snapshot.waiting), default=1)
        excluded = chain.exclude(exclude, needed=needed) if exclude else ""
        return Released(arrays=chain.release(), excluded=excluded)
    except NotAllowed:
        request(chain.run, RequestKind.RELEASE, exclude=exclude)
        return None
