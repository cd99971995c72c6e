"""Keep the nodes: after a failure that the allocation survives, the guard starts again on good nodes of the job.

The next start is a guard of its own, which replaces this process: one attempt stays one guard. Killed before that, the
guard leaves a finalized attempt, and the array goes on as after any other end.
"""

import logging
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from opsctl.base.ports import Runner
from opsctl.guard.apply_switches import apply_switches
from opsctl.guard.attempt_record import count_gpus_per_node
from opsctl.guard.deadline import DeadlineFile
from opsctl.guard.end_record import FinishedAttempt, read_end
from opsctl.guard.repair_wait import RepairWait
from opsctl.guard.restart import JobNodes, Restart, Then, choose_nodes, decide_restart, find_rule
from opsctl.guard.unfinalized import is_row_of
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import GuardSettings
from opsctl.slurm.allocation import list_allocated, list_used, use_nodes
from opsctl.slurm.job_environment import own_job
from opsctl.slurm.steps import run_on_all
from opsctl.state.events import RestartDecided
from opsctl.state.files import list_names
from opsctl.state.journal import replay
from opsctl.state.run_dir import Attempt, RunDir

log = logging.getLogger(__name__)
CLEAR_S = 15.0
"""Time to end what an attempt left behind on its nodes. A process that a dead file system blocks does not end."""
STEP_S = 10.0
"""How much longer a step on all nodes may take: a step that does not start ends the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStart:
    """The allocation of the running job, after the attempt of this guard."""

    arrays: TrainArrays
    rules: GuardSettings
    runner: Runner
    env: Mapping[str, str]
    """The environment of the attempt."""
    attempt: Attempt
    deadline: DeadlineFile
    wait: RepairWait
    left_out: Collection[str]
    """Spare nodes that must not be used."""

    def prepare(self, ended: FinishedAttempt) -> dict[str, str] | None:
        """Return the environment of the next start, whose nodes are clear; None if the nodes go back.

        Raises OpsctlError and TimedOut.
        """
        used = tuple(list_used(self.env))
        allocation = JobNodes(
            usable=tuple(self._list_usable()), used=used, needed=len(used), left_s=self._measure_time_left()
        )
        if self.attempt.number and not has_ranks(self.arrays.run, self.attempt):
            restart = Restart(why="no rank has started again in this allocation")
        else:
            restart = self._wait(decide_restart(ended, self._list_starts(ended), allocation, self.rules))
        if restart.nodes:
            restart = self._clear(restart, allocation)
        if restart.nodes and (other := self._find_other_task(has_lost_nodes=restart.usable != allocation.usable)):
            restart = Restart(why=f"task {other} of this train runs already")
        if restart.nodes and self.wait.is_stopped():
            restart = Restart(why="a switch, a person or Slurm has asked for the end of the task")
            for line in apply_switches(self.arrays, self.rules):  # no guard of a further start will
                log.info(line)
        if not restart.nodes:
            is_usual = find_rule(ended).then is Then.END
            log.log(logging.DEBUG if is_usual else logging.INFO, "the nodes go back: %s", restart.why)
            return None
        self.arrays.note(
            RestartDecided(
                attempt=self.attempt.name,
                nodes=",".join(restart.nodes),
                spares=",".join(restart.spares),
                why=restart.why,
            )
        )
        log.info("starting again on %s: %s", ",".join(restart.nodes), restart.why)
        return use_nodes(self.env, restart.nodes, allocated=restart.usable)

    def _list_usable(self) -> list[str]:
        return [node for node in list_allocated(self.env) if node not in self.left_out]

    def _wait(self, restart: Restart) -> Restart:
        """Let the time pass that the decision asks for; return what becomes of the allocation then."""
        if restart.nodes and restart.pause_s:
            log.info("starting again in %.0f s: the same cause has repeated", restart.pause_s)
            self.wait.wait(restart.pause_s)
        if not (restart.nodes and restart.repair_s):
            return restart
        gpus = count_gpus_per_node(self.arrays.run) or 0
        if not self.wait.await_repair(restart.repair_s, self._list_usable(), gpus):
            return Restart(why="no person has repaired the train")
        return replace(restart, why="a person has repaired the train")

    def _measure_time_left(self) -> float | None:
        end = self.deadline.end
        if end is None:
            return None
        return (end - self.arrays.journal.clock.now()).total_seconds() - self.rules.stop_grace_seconds

    def _list_starts(self, ended: FinishedAttempt) -> list[FinishedAttempt]:
        """Return the finalized starts of this task, `ended` last."""
        run, history = self.arrays.run, replay(self.arrays.journal.events())
        earlier = [run.attempt(name) for name in history.started if name != ended.attempt]
        own = [attempt for attempt in earlier if attempt.job == self.attempt.job]
        return [*(start for attempt in own if (start := read_end(attempt))), ended]

    def _find_other_task(self, *, has_lost_nodes: bool) -> str:
        """Return another running task of the train; empty without one.

        When Slurm takes a lost node out of this task, Slurm may start the next task of the array. So the queued tasks
        of the array are made to wait for the end of this task. Tasks of later arrays wait for this array already.
        """
        snapshot = self.arrays.check()
        others = [job.full_id for job in snapshot.active if not is_row_of(job, self.attempt)]
        if has_lost_nodes and not others:
            waiting = [job for job in snapshot.waiting if job.array == self.attempt.array]
            self.arrays.slurm.start_after(waiting, self.attempt.job)
        return next(iter(others), "")

    def _clear(self, restart: Restart, allocation: JobNodes) -> Restart:
        """End what the attempt left behind; leave out nodes that do not answer or cannot be cleared."""
        run_dir = str(self.arrays.run.path)
        argv = (sys.executable, "-P", "-m", "opsctl.guard.leftovers", run_dir, self.attempt.name, f"{CLEAR_S:g}")
        done = run_on_all(self.runner, own_job(self.env), restart.usable, argv, timeout=CLEAR_S + STEP_S)
        usable = tuple(node for node in restart.usable if node in done.out.split())
        if left_out := [node for node in restart.usable if node not in usable]:
            log.warning("%s: not used again: %s", ", ".join(left_out), done.err.strip()[-300:] or "no answer")
        if len(usable) < allocation.needed:
            return Restart(why=f"{len(usable)} nodes could be cleared of the {allocation.needed} that are needed")
        nodes = choose_nodes(usable, restart.nodes)
        return replace(restart, nodes=nodes, usable=usable)


def has_ranks(run: RunDir, attempt: Attempt) -> bool:
    """Whether a rank of an attempt has started: each opens a log."""
    return any(name.endswith(".log") for name in list_names(run.attempt_logs(attempt.name)))
