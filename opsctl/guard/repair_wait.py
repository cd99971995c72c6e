"""Waits before a restart in place: for a person who repairs a held train, or for a cause outside the train to pass.

The attempt is finalized. A guard that is killed during a wait leaves what a train without the wait has: a held queue
after a fault, else a queue that goes on. A guard killed between the release of the queue and the next start leaves a
queue that goes on.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from opsctl.base.nodesets import fold
from opsctl.base.units import format_duration
from opsctl.launch.train_arrays import TrainArrays
from opsctl.state.events import AttemptFinalized, Edited, Event, Held, HoldReleased, RepairAwaited
from opsctl.state.run_dir import Attempt
from opsctl.state.switches import Switch, disarm, read

log = logging.getLogger(__name__)
LOOK_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class RepairWait:
    """The wait of one guard, after the end of its attempt."""

    arrays: TrainArrays
    attempt: Attempt
    is_stopped: Callable[[], bool]
    """Whether a switch, a person or Slurm has asked for the end of the task. Reads the switches."""
    alert: Callable[[], None]
    """Sends the alerts that follow from the journal."""

    def await_repair(self, seconds: float, nodes: Sequence[str], gpus_per_node: int) -> bool:
        """Keep the nodes until a person edits, releases or restarts the train; return whether a person has.

        Then the queued tasks are released, as by `opsctl release`, unless a person has held them since. Raises
        OpsctlError.
        """
        end = self.arrays.journal.clock.now() + timedelta(seconds=seconds)
        gpu_hours = gpus_per_node * len(nodes) * seconds / 3600
        awaited = RepairAwaited(attempt=self.attempt.name, nodes=fold(nodes), gpu_hours=gpu_hours, until=end)
        self.arrays.journal.append(awaited)
        log.info("%s wait for a repair for %s: %.3g GPU hours", awaited.nodes, format_duration(seconds), gpu_hours)
        self.alert()
        if self.wait(seconds, until=lambda: self._take_restart_switch() or self._is_repaired()):
            if not (self._is_repaired() and self._find_last(Held) > self._find_last(Edited, HoldReleased)):
                self.arrays.release()
            return True
        log.info("the wait for a repair has ended without one")
        return False

    def wait(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait for at most `seconds`, or until the task is to end; return whether `until` has become true before."""
        clock = self.arrays.journal.clock
        end_s = clock.monotonic() + seconds
        while not self.is_stopped():
            if until():
                return True
            left_s = end_s - clock.monotonic()
            if left_s <= 0:
                return False
            clock.sleep(min(LOOK_EVERY_S, left_s))
        return False

    def _take_restart_switch(self) -> bool:
        run = self.arrays.run
        return bool(read(run, Switch.RESTART)) and disarm(run, Switch.RESTART)

    def _is_repaired(self) -> bool:
        """Whether a person has edited or released the train since the end of the attempt."""
        # Another host that has not seen the end yet may give its event the same number.
        return self._find_last(Edited, HoldReleased) >= max(0, self._find_last(AttemptFinalized))

    def _find_last(self, *kinds: type[Event]) -> int:
        """Return the number of the newest event of these kinds; -1 without one."""
        return max((event.number for event in self.arrays.journal.events() if isinstance(event, kinds)), default=-1)
