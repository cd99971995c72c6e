"""Check the spare nodes of a running task, at its start and every 30 minutes. A sick spare is reported and not used."""

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opsctl.base.nodesets import fold
from opsctl.guard.attempt_record import expand_nodes
from opsctl.guard.tolerated import Tolerated
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import GuardSettings, TrainSettings, parse, read_toml
from opsctl.slurm.job_environment import CHOSEN, list_allocated, own_job
from opsctl.state.run_dir import Attempt

if TYPE_CHECKING:
    from opsctl.guard.node_care import NodeCare

log = logging.getLogger(__name__)
CHECK_EVERY_S = 1800.0
LOOK_EVERY_S = 5.0


@dataclass(slots=True)
class SpareWatch:
    """The checks of one guard, in a thread beside the body."""

    arrays: TrainArrays
    rules: GuardSettings
    attempt: Attempt
    env: Mapping[str, str]
    """The environment of the attempt."""
    make_care: "Callable[[], NodeCare]"
    notify: Callable[[], None]
    tolerated: Tolerated
    unusable: set[str] = field(default_factory=set)
    """Spares that are sick, or that went back to Slurm."""
    _began_s: float = 0.0
    _next_look_s: float = 0.0
    _next_check_s: float = 0.0
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._began_s = self.arrays.journal.clock.monotonic()

    def list_spares(self) -> list[str]:
        used = {*expand_nodes(self.env), *self.unusable}
        return [node for node in list_allocated(self.env) if node not in used]

    def look(self) -> None:
        """Give the spares back if it is time, or start a check if one is due; in a thread."""
        now_s = self.arrays.journal.clock.monotonic()
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or now_s < self._next_look_s or not self.env.get(CHOSEN):
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        if not self.list_spares():
            return
        is_due = now_s >= self._next_check_s
        self._next_check_s = now_s + CHECK_EVERY_S if is_due else self._next_check_s
        self._thread = threading.Thread(
            target=self._work, args=(now_s - self._began_s,), kwargs={"is_due": is_due}, daemon=True
        )
        self._thread.start()

    def _work(self, age_s: float, *, is_due: bool) -> None:
        with self.tolerated("looking after the spare nodes"):
            config = parse(TrainSettings, read_toml(self.arrays.run.config), str(self.arrays.run.config))
            if 0 < config.slurm.release_spares_after <= age_s:
                self._give_back()
            elif is_due and self.rules.node_check is not False:
                self.check(config)

    def _give_back(self) -> None:
        """Reduce the job to the nodes of the ranks. Raises SlurmError.

        Slurm 22.05 would start the next task of a `%1` array beside a job that was reduced: it has to wait first.
        """
        spares = self.list_spares()
        waiting = [job for job in self.arrays.check().waiting if job.array == self.attempt.array]
        self.arrays.slurm.start_after(waiting, self.attempt.job)
        self.unusable |= set(spares)  # first: after a time-out, nobody knows whether they are gone
        self.arrays.slurm.give_back(own_job(self.env), fold(expand_nodes(self.env)))
        log.info("gave the unused spare nodes back: %s", fold(spares))

    def check(self, config: TrainSettings) -> None:
        """Check the spares; take faulty ones out as any faulty node, and alert people.

        With GPUs, the spares run the collective test as well. `[guard] node_check = false` switches the checks off.
        Raises OpsctlError.
        """
        spares, gpus = self.list_spares(), config.slurm.gpus_per_node
        from opsctl.guard.node_check import list_faulty, make_diagnosis  # noqa: PLC0415 (as above)

        care, slurm = self.make_care(), self.arrays.slurm
        faulty = list_faulty(care.check(slurm, spares, timeout_s=self.rules.node_check_seconds, gpus=gpus))
        rest = [node for node in spares if node not in {verdict.node for verdict in faulty}]
        if gpus and rest:
            faulty += list_faulty(care.test_collectives(slurm, rest, python=config.python or sys.executable))
        if not faulty:
            return
        nodes, diagnosis = [verdict.node for verdict in faulty], make_diagnosis(self.attempt, faulty)
        self.unusable |= set(nodes)
        log.warning("spare node not used: %s: %s", ", ".join(nodes), diagnosis.says)
        self.arrays.note(care.remove_suspects(self.arrays, diagnosis, nodes, faulty))
        self.notify()
