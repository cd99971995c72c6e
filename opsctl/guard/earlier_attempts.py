"""The attempts before the own one: the guard finalizes those that nobody has finalized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opsctl.guard.attempt_record import expand_nodes
from opsctl.guard.stop_request import StopKind
from opsctl.guard.tolerated import Tolerated
from opsctl.guard.unfinalized import list_unfinalized
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import GuardSettings
from opsctl.state.journal import replay
from opsctl.state.run_dir import Attempt

if TYPE_CHECKING:
    from opsctl.guard.end_record import FinishedAttempt
    from opsctl.guard.node_care import NodeCare


@dataclass(slots=True, kw_only=True)
class EarlierAttempts:
    """The attempts before the own one."""

    arrays: TrainArrays
    rules: GuardSettings
    own: Attempt
    env: Mapping[str, str]
    """The environment of the batch job."""
    make_care: Callable[[], NodeCare]
    tolerated: Tolerated
    is_open: bool = True
    """Whether an earlier attempt may still have to be finalized."""

    def finalize(self) -> list[FinishedAttempt]:
        """Finalize those that have ended. Slurm is not asked if the journal and the files show that none is left."""
        with self.tolerated("finalizing earlier attempts"):
            if self._is_all_finalized():
                self.is_open = False
                return []
            from opsctl.guard.finalize import finalize_ended  # noqa: PLC0415 (after a failure only)

            snapshot, own = self.arrays.check(), self.own.name
            finalized = finalize_ended(self.arrays, self.rules, snapshot, own=own, care=self.make_care())
            done = {own, *snapshot.history.finalized, *(finished.attempt for finished in finalized)}
            self.is_open = not done.issuperset(snapshot.history.started)
            return finalized
        return []

    def find_reason_to_leave(self, finalized: list[FinishedAttempt]) -> tuple[StopKind, str] | None:
        """Return why the own body must not run: the end of one is final, or excludes one of our nodes."""
        if not finalized:
            return None
        from opsctl.guard.action import find_reason_to_leave  # noqa: PLC0415 (after a failure only)

        return find_reason_to_leave(finalized, expand_nodes(self.env))

    def _is_all_finalized(self) -> bool:
        """Whether every earlier attempt is finalized, and no submission is of unknown success."""
        history = replay(self.arrays.journal.events())
        unfinalized = list_unfinalized(self.arrays.run, history)
        return not history.pending and all(attempt.name == self.own.name for attempt in unfinalized)
