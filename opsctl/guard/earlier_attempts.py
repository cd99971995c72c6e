"""The attempts before the own one: the guard finalizes those that nobody has finalized."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opsctl.base.model import JobState
from opsctl.guard.stop_request import read_refusal
from opsctl.guard.tolerated import Tolerated
from opsctl.guard.unfinalized import is_row_of, list_unfinalized
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import GuardSettings
from opsctl.state.journal import replay
from opsctl.state.run_dir import Attempt

if TYPE_CHECKING:
    from opsctl.guard.end_record import FinishedAttempt
    from opsctl.guard.node_care import NodeCare


log = logging.getLogger(__name__)
LOOK_EVERY_S = 2.0


@dataclass(slots=True, kw_only=True)
class EarlierAttempts:
    """The attempts before the own one."""

    arrays: TrainArrays
    rules: GuardSettings
    own: Attempt
    make_care: "Callable[[], NodeCare]"
    tolerated: Tolerated
    is_open: bool = True
    """Whether an earlier attempt may still have to be finalized."""
    is_running: bool = False
    """Whether Slurm runs another task of the train beside this one."""

    def finalize(self) -> "list[FinishedAttempt]":
        """Finalize those that have ended. Slurm is not asked if the journal and the files show that none is left."""
        with self.tolerated("finalizing earlier attempts"):
            if self._is_all_finalized():
                self.is_open = self.is_running = False
                return []
            from opsctl.guard.finalize import finalize_ended  # noqa: PLC0415 (after a failure only)

            snapshot, own = self.arrays.check(), self.own.name
            others = [job for job in snapshot.active if not is_row_of(job, self.own)]
            self.is_running = any(job.state is JobState.RUNNING for job in others)
            finalized = finalize_ended(self.arrays, self.rules, snapshot, own=own, care=self.make_care())
            done = {own, *snapshot.history.finalized, *(finished.attempt for finished in finalized)}
            self.is_open = not done.issuperset(snapshot.history.started)
            return finalized
        return []

    def await_end(self, check_switches: Callable[[], None]) -> "list[FinishedAttempt]":
        """Wait while another task of the train runs: two attempts would train at once. Return what was finalized.

        Slurm can start the next task of a `%1` array beside a task that has lost a node and goes on without it.
        """
        clock = self.arrays.journal.clock
        finalized: list[FinishedAttempt] = []
        if self.is_running:
            log.warning("waiting: another task of this train still runs")
        while self.is_running and not read_refusal(self.own):
            clock.sleep(LOOK_EVERY_S)
            check_switches()
            finalized += self.finalize()
        return finalized

    def _is_all_finalized(self) -> bool:
        """Whether every earlier attempt is finalized, and no submission is of unknown success."""
        history = replay(self.arrays.journal.events())
        unfinalized = list_unfinalized(self.arrays.run, history)
        return not history.pending and all(attempt.name == self.own.name for attempt in unfinalized)
