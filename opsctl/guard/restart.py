"""Keep the nodes: after a failure that the allocation survives, the guard starts again on good nodes of the job.

The table restart.toml decides whether, and on which nodes. The next start is a guard of its own, which replaces this
process: one attempt stays one guard. Killed before that, the guard leaves a finalized attempt, and the array goes on as
after any other end.
"""

import logging
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import cache

from pydantic import TypeAdapter

from opsctl.base.ports import Runner
from opsctl.base.tables import read_package_table
from opsctl.guard.apply_switches import apply_switches
from opsctl.guard.attempt_record import count_gpus_per_node
from opsctl.guard.deadline import DeadlineFile
from opsctl.guard.end_record import Action, FinishedAttempt, Outcome, read_end
from opsctl.guard.repair_wait import RepairWait
from opsctl.guard.unfinalized import is_row_of
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import GuardSettings
from opsctl.slurm.job_environment import limit_to_nodes, list_allocated, list_used, own_job
from opsctl.slurm.steps import run_on_all
from opsctl.state.events import RestartDecided
from opsctl.state.files import list_names
from opsctl.state.journal import replay
from opsctl.state.reasons import ReasonKind
from opsctl.state.run_dir import Attempt, RunDir

log = logging.getLogger(__name__)
START_S = 120.0
"""Time for the start of a trainer, if its task is long enough."""
START_SHARE = 0.2
"""The same as a share of the time limit of a short task."""
WINDOW = timedelta(hours=1)
MAX_DOUBLED = 30
"""A longer pause would be above any limit, and the power above any number."""
CLEAR_S = 15.0
"""Time to end what an attempt left behind on its nodes. A process that a dead file system blocks does not end."""
STEP_S = 10.0
"""How much longer a step on all nodes may take: a step that does not start ends the task."""


class Then(StrEnum):
    """What becomes of the allocation."""

    SAME_NODES = "same-nodes"
    OTHER_NODES = "other-nodes"
    REPAIR = "repair"
    """The nodes wait for a person who repairs the train."""
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRule:
    """One row of restart.toml."""

    then: Then
    why: str
    outcomes: tuple[Outcome, ...] = ()
    actions: tuple[Action, ...] = ()
    reasons: tuple[ReasonKind, ...] = ()
    bad_nodes: bool | None = None

    def fits(self, ended: FinishedAttempt) -> bool:
        return (
            (not self.outcomes or ended.outcome in self.outcomes)
            and (not self.actions or ended.action in self.actions)
            and (not self.reasons or (ended.reason is not None and ended.reason.kind in self.reasons))
            and (self.bad_nodes is None or self.bad_nodes == bool(ended.suspects))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNodes:
    """The nodes of a running job, and its time."""

    usable: tuple[str, ...]
    """The nodes that may be used, in Slurm's order."""
    used: tuple[str, ...]
    """Those on which the last start ran its ranks."""
    needed: int
    left_s: float | None
    """Time until the ranks must have saved; None without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What becomes of the allocation."""

    nodes: tuple[str, ...] = ()
    """The nodes of the next start; empty if the allocation goes back."""
    usable: tuple[str, ...] = ()
    """All nodes that may be used from now on: those of the next start and its spares."""
    why: str
    repair_s: float = 0.0
    """How long the nodes wait for a repair before the next start; without one, they go back."""
    pause_s: float = 0.0
    """How long to wait before the next start, so that a cause outside the train may pass."""

    @property
    def spares(self) -> tuple[str, ...]:
        return tuple(node for node in self.usable if node not in self.nodes)


@cache
def restart_rules() -> tuple[RestartRule, ...]:
    """Return the rows of restart.toml."""
    rows = read_package_table("guard/restart.toml")["rule"]
    return TypeAdapter(tuple[RestartRule, ...]).validate_python(rows)


def decide_restart(
    ended: FinishedAttempt, starts: Sequence[FinishedAttempt], allocation: JobNodes, rules: GuardSettings
) -> Restart:
    """Return the nodes of the next start in this allocation, or why the allocation goes back.

    `starts` are the finalized starts in this allocation, `ended` included.
    """
    rule = find_rule(ended)
    if not rules.restart_in_place:
        return Restart(why="[guard] restart_in_place is false")
    if rule.then is Then.END or (rule.then is Then.REPAIR and not rules.wait_for_repair):
        return Restart(why=rule.why)
    if why := _find_obstacle(ended, starts, allocation, rules):
        return Restart(why=why)
    usable = tuple(node for node in allocation.usable if node not in ended.suspects)
    if len(usable) < allocation.needed:
        return Restart(why=f"{len(usable)} good nodes are left of the {allocation.needed} that the train needs")
    return Restart(
        nodes=choose_nodes(usable, allocation.used),
        usable=usable,
        why=rule.why,
        repair_s=min(rules.wait_for_repair, _find_spare_time(ended, allocation)) if rule.then is Then.REPAIR else 0.0,
        pause_s=find_pause_s(starts),
    )


def find_rule(ended: FinishedAttempt) -> RestartRule:
    """Return the row of restart.toml for an end."""
    return next(rule for rule in restart_rules() if rule.fits(ended))


def choose_nodes(usable: Sequence[str], used: Sequence[str]) -> tuple[str, ...]:
    """Return as many usable nodes as were used: each keeps its place, and a spare takes the place of a lost node.

    So the ranks of all other nodes stay what they were, with their neighbours in the network.
    """
    spares = iter([node for node in usable if node not in used])
    return tuple(node if node in usable else next(spares) for node in used)


def find_pause_s(starts: Sequence[FinishedAttempt]) -> float:
    """Return how long to wait before the next start: longer each time that the same cause outside the train repeats."""
    pause, repeated = read_package_table("guard/restart.toml")["pause"], 0
    for start in reversed(starts):
        is_same = start.kind in pause["kinds"] and start.cause == starts[-1].cause and not start.suspects
        if start.new_checkpoint or not is_same:
            break
        repeated += 1
    doubled = 2.0 ** min(repeated - 2, MAX_DOUBLED)
    return min(pause["longest_s"], pause["first_s"] * doubled) if repeated > 1 else 0.0


def _find_obstacle(
    ended: FinishedAttempt, starts: Sequence[FinishedAttempt], allocation: JobNodes, rules: GuardSettings
) -> str:
    """Return why no further start would help, empty if one may."""
    if _find_spare_time(ended, allocation) < 0:
        needed_s = _measure_start_s(ended)
        return f"{allocation.left_s:.0f} s are left, and a start with one checkpoint takes {needed_s:.0f} s"
    if find_rule(ended).then is Then.REPAIR:
        return ""  # a person decides
    futile = [start for start in starts if start.ended > ended.ended - WINDOW and not start.new_checkpoint]
    if len(futile) >= rules.restarts_per_hour:
        return f"{len(futile)} starts within an hour brought no new checkpoint"
    return ""


def _measure_start_s(ended: FinishedAttempt) -> float:
    """Return how long a start with one checkpoint takes."""
    limit_s = 60 * (ended.limit_minutes or 0)
    start_s = min(START_S, START_SHARE * limit_s) if limit_s else START_S
    return start_s + 60 * (ended.save_gap_minutes or 0)


def _find_spare_time(ended: FinishedAttempt, allocation: JobNodes) -> float:
    """Return how long the next start can wait and still reach a checkpoint; below 0 if there is too little time."""
    return math.inf if allocation.left_s is None else allocation.left_s - _measure_start_s(ended)


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
        return limit_to_nodes(self.env, restart.nodes, allocated=restart.usable)

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
