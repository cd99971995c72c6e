"""The guard: the process that runs the body as its child and turns every reason to stop into a stop request.

An error in the guard never stops a healthy train: the guard reports a failed step and does the next one.

All nodes of the job wait until the body runs. Modules that only the end of an attempt needs are imported beside the
body (during_body.py).
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from opsctl.base.errors import RunDirError
from opsctl.base.ports import Clock, Runner
from opsctl.guard import attempt_record
from opsctl.guard.body import Body, start_body
from opsctl.guard.deadline import DeadlineFile
from opsctl.guard.during_body import DuringBody
from opsctl.guard.earlier_attempts import EarlierAttempts
from opsctl.guard.free_space import await_space
from opsctl.guard.lost_node import Stragglers, find_lost_node, find_missing_nodes, find_removed_nodes
from opsctl.guard.quiet_ranks import QuietRanks, make_quiet_ranks
from opsctl.guard.rank import find_free_port
from opsctl.guard.spare_watch import SpareWatch
from opsctl.guard.stop_request import FINAL, StopKind, read_stop_request
from opsctl.guard.stopping import Signals, Stopping
from opsctl.guard.tolerated import Tolerated
from opsctl.host.processes import adopt_orphans, count_descendants, end_descendants
from opsctl.launch.rank_wrapper import render_rank_wrapper
from opsctl.launch.tracker_runs import tracker_variables
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import GuardSettings
from opsctl.slurm.job_environment import CHOSEN, list_allocated, own_job
from opsctl.state.events import AttemptStarted, NodesLost
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.state.switches import Switch, disarm

if TYPE_CHECKING:
    from opsctl.guard.end_record import FinishedAttempt
    from opsctl.guard.hooks import CheckpointHook, TrainHooks
    from opsctl.guard.node_care import NodeCare

log = logging.getLogger(__name__)
GUARD_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
RANKS_GRACE_S = 3.0
"""Time between TERM and KILL for processes that the body left behind."""
SRUN_GRACE_S = 0.5  # the same for processes that outlive a failed rank: they have had their grace
LOOK_FOR_FAILURE_S = 0.5
START_LIMIT_S = 300.0
"""A body loads its modules and starts its ranks sooner."""
REFUSAL_CODES = {StopKind.REFUSED: 1, StopKind.NODE_REFUSED: 1, StopKind.TERM: 143}
"""Exit codes of a job whose body was not run; 0 for other reasons."""


@dataclass(kw_only=True)
class Supervisor:
    """The guard of one attempt: prepare, run the body, watch it, end what it left behind, finalize."""

    arrays: TrainArrays
    rules: GuardSettings
    runner: Runner
    env: Mapping[str, str]
    """The environment of the batch job."""
    check_trusted: Callable[[], None]
    """Raises RunDirError if another user could have written the scripts."""
    revive_cron: Callable[[], None] = lambda: None
    """Restarts a dead cron driver. Called every few minutes."""
    make_care: Callable[[], NodeCare]
    """Builds the access to nodes."""
    notify: Callable[[], None] = lambda: None
    """Sends the alerts that the finalization of this attempt has caused."""
    tolerated: Tolerated = field(default_factory=Tolerated)
    attempt: Attempt = field(init=False)
    earlier: EarlierAttempts = field(init=False)
    deadline: DeadlineFile = field(init=False)
    stopping: Stopping = field(init=False)
    stragglers: Stragglers = field(init=False)
    quiet: QuietRanks = field(init=False)
    during: DuringBody = field(init=False)
    spares: SpareWatch = field(init=False)
    next_env: dict[str, str] | None = None
    """The environment of the next start in the same allocation, after the end; None if the nodes go back."""
    _start_mark: int = -1
    """The mark of the newest checkpoint at the start."""
    _body_since_s: float = 0.0

    def __post_init__(self) -> None:
        arrays, rules, env, tolerated = self.arrays, self.rules, self.env, self.tolerated
        self.attempt = attempt = attempt_record.claim_attempt(self.run, env)
        job = own_job(env)
        self.earlier = EarlierAttempts(
            arrays=arrays, rules=rules, own=attempt, make_care=self.make_care, tolerated=tolerated
        )
        self.deadline = DeadlineFile(arrays, attempt, job, self.clock, rules.deadline_seconds)
        self.stopping = Stopping(
            arrays=arrays, rules=rules, attempt=attempt, job=job, deadline=self.deadline, tolerated=tolerated
        )
        self.quiet = make_quiet_ranks(arrays.journal, attempt, rules)
        self.during = DuringBody(run=self.run, attempt=attempt, runner=self.runner, env=env, clock=self.clock)
        self.during.send_alerts = self._send_alerts
        self.spares = SpareWatch(arrays, rules, attempt, env, self.make_care, self._send_alerts, tolerated)
        self.stragglers = Stragglers(
            first_exit=self.run.attempt_logs(attempt.name) / "first-exit",
            grace_s=rules.exit_grace_seconds,
            clock=self.clock,
            find_missing_nodes=lambda: find_missing_nodes(self.runner, env),
        )

    @property
    def run(self) -> RunDir:
        return self.arrays.run

    @property
    def clock(self) -> Clock:
        return self.arrays.journal.clock

    @property
    def body(self) -> Body | None:
        """The body, once it has been started."""
        return self.stopping.body

    @cached_property
    def hooks(self) -> TrainHooks:
        from opsctl.guard.hooks import TrainHooks  # noqa: PLC0415 (not needed before the body)

        return TrainHooks(run=self.run, journal=self.arrays.journal, runner=self.runner)

    @cached_property
    def checkpoint_hook(self) -> CheckpointHook:
        from opsctl.guard.hooks import CheckpointHook  # noqa: PLC0415 (not needed before the body)

        return CheckpointHook(self.hooks, self.attempt.name, self.clock, newest=self._start_mark)

    def supervise(self) -> int:
        """Run the body to its end, or leave without running the body. Return the exit code of the job."""
        adopt_orphans()
        signals = Signals(GUARD_SIGNALS, self.stopping.on_signal)
        self._prepare()
        if refusal := self.stopping.refusal:
            log.info("leaving without running the body: %s", refusal.why)
            self._finalize_own()
            return REFUSAL_CODES.get(refusal.reason, 0)
        self._start_body()
        self._watch(signals, lambda: self.body is not None and self.body.poll() is None)
        code = self._end_body(signals)
        self._finalize_own()
        return code

    # --- before the body

    def _prepare(self) -> None:
        """Record the start; ask for a stop if there is a reason why the body must not run."""
        with self.tolerated("recording the start"):
            self._record_start()
        self.deadline.begin(self.env, self.tolerated)  # its file lies in the directory that the record has made
        finalized = self.earlier.finalize()
        with self.tolerated("waiting for another task"):
            finalized += self.earlier.await_end(self.stopping.check_switches)
        self.during.has_news |= bool(finalized)
        if finalized:
            from opsctl.guard.action import find_reason_to_leave  # noqa: PLC0415 (after a failure only)

            if reason := find_reason_to_leave(finalized, attempt_record.expand_nodes(self.env)):
                self.stopping.request(*reason)
        with self.tolerated("disarming the restart switch"):
            disarm(self.run, Switch.RESTART)  # this start is the restart
        with self.tolerated("reading the switches"):
            self.stopping.check_switches()
        with self.tolerated("checking who can write the body"):
            try:
                self.check_trusted()
            except RunDirError as error:
                self.stopping.request(StopKind.REFUSED, error.message)
        with self.tolerated("waiting for space"):
            check = self.stopping.check_switches
            await_space(self.arrays, self.attempt, self.rules.fault_attempts, check_switches=check)
        with self.tolerated("checking the nodes"):
            self._check_nodes()

    def _record_start(self) -> None:
        start = attempt_record.make_start(self.run, self.attempt, self.env, self.clock.now())
        self._start_mark = start.checkpoint
        attempt_record.write_start(self.run, self.attempt, start)
        spares = max(0, len(list_allocated(self.env)) - start.node_count)
        self.arrays.journal.append(AttemptStarted(attempt=self.attempt.name, nodes=start.nodes, spares=spares))
        log.info("attempt %s of %s starts on %s", self.attempt.name, self.run.name, start.nodes)

    def _check_nodes(self) -> None:
        """Refuse faulty nodes, if the train can run without them."""
        if self.stopping.refusal or not attempt_record.wants_node_check(self.run, self.rules):
            return
        from opsctl.guard.node_check import check_nodes  # noqa: PLC0415 (with GPUs only)

        nodes = attempt_record.expand_nodes(self.env)
        spares = [node for node in list_allocated(self.env) if node not in nodes]
        node_check = check_nodes(self.arrays, self.make_care(), self.rules, self.attempt, nodes, spares=spares)
        if node_check.refusal:
            self.stopping.request(StopKind.NODE_REFUSED, node_check.refusal)
        elif not node_check.concession:
            log.debug("no node of this attempt is known to be faulty")
        else:
            log.warning("starting anyway: %s", node_check.concession)
            self.notify()

    # --- the body

    def _start_body(self) -> None:
        self.deadline.await_first_answer()
        minutes = self.deadline.minutes_left(self.rules.stop_grace_seconds)
        env = attempt_record.make_body_env(self.run, self.attempt, self.env, minutes_left=minutes, rules=self.rules)
        with self.tolerated("naming the runs of trackers"):
            env |= tracker_variables(self.run, self.arrays.journal.events(), self.env)
        with self.tolerated("writing the rank wrapper"):
            self.run.write(self.run.rank_wrapper, render_rank_wrapper())
        with self.tolerated("finding a free port"):
            env["TRAIN_FREE_PORT"] = str(find_free_port())
        self.stopping.body = body = start_body(["bash", str(self.run.body)], env)
        self._body_since_s = self.clock.monotonic()
        log.info("the body runs")
        signal.signal(signal.SIGUSR2, lambda *_: body.pass_usr2_on())
        threading.Thread(target=self._work_beside, daemon=True).start()

    def _work_beside(self) -> None:
        with self.tolerated("recording the environment"):
            self.during.work()

    def _watch(self, signals: Signals, runs: Callable[[], bool]) -> None:
        """Look after the body until `runs` is false, or until there is a reason to end what remains."""
        while runs():
            if self.stopping.kill_if_due() or self.stopping.end_if_requested():
                return
            if self._end_if_hung() or self._is_stuck_at_start():
                return
            if self.stragglers.are_late():
                log.warning("ending the body, which outlives a failed rank: %s", self.stragglers.why)
                return
            self._wait(signals)
            with self.tolerated("reading the switches"):
                self.stopping.check_switches()
            with self.tolerated("sending the stop signal"):
                self.stopping.send_due_signal()
            with self.tolerated("looking for checkpoints and after spare nodes"):
                self.checkpoint_hook.look()
                self.spares.look()
            with self.tolerated("asking for the job's end"):
                self._work_rarely()

    def _wait(self, signals: Signals) -> None:
        """Wait for `poll_seconds`, for a signal, or until a rank fails: its peers may wait for a lost node."""
        for _ in range(max(1, round(self.rules.poll_seconds / LOOK_FOR_FAILURE_S))):
            if signals.wait(min(LOOK_FOR_FAILURE_S, self.rules.poll_seconds)) or self.stragglers.code is not None:
                return

    def _work_rarely(self) -> None:
        if not self.deadline.refresh():
            return
        if self.earlier.is_open:
            self.during.has_news |= bool(self.earlier.finalize())
            self.during.send_news()
        self.revive_cron()

    def _is_stuck_at_start(self) -> bool:
        """Whether no rank of a restart has started for long: some versions of srun hang after a lost node."""
        if not self.attempt.number or self.clock.monotonic() < self._body_since_s + START_LIMIT_S:
            return False
        from opsctl.guard.restart import has_ranks  # noqa: PLC0415 (after a failure only)

        with self.tolerated("looking for ranks"):
            if not has_ranks(self.run, self.attempt):
                log.warning("ending the body: no rank has started within %g s", START_LIMIT_S)
                return True
        return False

    def _end_if_hung(self) -> bool:
        """Save the stacks and kill the ranks if the attempt certainly hangs. Return whether it does."""
        with self.tolerated("looking for a hang"):
            if why := self.quiet.find_hang():
                from opsctl.guard.hang_evidence import save_stacks  # noqa: PLC0415 (rarely needed)

                save_stacks(self.run, self.attempt, self.runner, self.env, self.clock)
                if not self.quiet.has_advanced():  # while the stacks were saved
                    self.stopping.end_hung(why)
                    return True
        return False

    # --- the end

    @property
    def may_restart(self) -> bool:
        """Whether neither Slurm nor a person has asked for the end of the task, also since the attempt has ended."""
        request = read_stop_request(self.attempt)
        return self.stopping.kill_at_s is None and (request is None or request.reason not in FINAL)

    def _end_body(self, signals: Signals) -> int:
        """Record the exit code, end what the body left behind, and return the code."""
        self.during.finish()
        codes = (self.body.poll() if self.body else None, self.stragglers.code, 128 + signal.SIGTERM)
        code = next(code for code in codes if code is not None)
        log.info("the body ended with exit code %d", code)
        with self.tolerated("recording the exit"):
            self.run.write(self.attempt.body_exit, f"{code}\n")
        with self.tolerated("recording lost nodes"):
            if lost_nodes := self._find_lost_nodes(code):
                self.arrays.note(NodesLost(attempt=self.attempt.name, nodes=",".join(lost_nodes)))
        if self.body and self.body.poll() == 128 + signal.SIGTERM:
            self._await_own_term(signals)
        if self.stopping.kill_at_s is not None:
            # The shell ends before the ranks, which may still be saving.
            self._watch(signals, lambda: count_descendants() > 0)
        else:
            with self.tolerated("running the hook of the last checkpoint"):
                self.checkpoint_hook.finish()
        self._end_all_below()
        return code

    def _find_lost_nodes(self, code: int) -> tuple[str, ...]:
        if self.stragglers.lost_nodes or code == 0 or not self.env.get(CHOSEN):
            return self.stragglers.lost_nodes
        return find_removed_nodes(self.arrays.slurm, self.attempt, self.env)

    def _await_own_term(self, signals: Signals) -> None:
        """Wait up to 1 s for our own TERM: Slurm signals the processes of a job one after another."""
        until = self.clock.monotonic() + 1
        while self.stopping.kill_at_s is None and self.clock.monotonic() < until:
            signals.wait(0.1)

    def _end_all_below(self) -> None:
        # Even after TERM, Slurm's step waits for a dead node.
        grace = SRUN_GRACE_S if self.stragglers.are_late() else RANKS_GRACE_S
        with self.tolerated("ending the remaining processes"):
            if count := count_descendants():
                log.info("sending TERM to %d remaining processes, and KILL after %g s", count, grace)
            for _ in range(3):  # processes forked meanwhile become our descendants
                if end_descendants(grace=grace) == 0:
                    return

    def _finalize_own(self) -> None:
        """Finalize this attempt, and prepare the next start if the nodes are kept."""
        if self.body and self.earlier.is_open and self.stopping.kill_at_s is None:
            # Slurm may have reported a dead node's job as active at our start. That attempt is finalized before ours.
            self.earlier.finalize()
        job = None
        with self.tolerated("asking why Slurm ends the job"):
            job = find_lost_node(self.arrays.slurm, self.attempt)
        finalized: list[FinishedAttempt] = []
        with self.tolerated("finalizing this attempt"):
            from opsctl.guard.finalize import finalize  # noqa: PLC0415 (imported beside the body, if that was long)

            finalized.append(finalize(self.arrays, self.rules, self.attempt, job=job, care=self.make_care()))
        waits = self.rules.wait_for_repair > 0  # the alert of a train whose nodes wait says so
        if not waits:
            self._send_alerts()
        self.hooks.after_attempts(finalized)
        with self.tolerated("keeping the nodes"):
            self._keep_nodes(finalized)
        if waits and self.next_env is None:
            self._send_alerts()

    def _keep_nodes(self, finalized: list[FinishedAttempt]) -> None:
        if not finalized or not self.may_restart:
            return
        from opsctl.guard.repair_wait import RepairWait  # noqa: PLC0415 (after the body)
        from opsctl.guard.restart import NextStart  # noqa: PLC0415 (after the body)

        next_start = NextStart(
            arrays=self.arrays,
            rules=self.rules,
            runner=self.runner,
            env=self.env,
            attempt=self.attempt,
            deadline=self.deadline,
            wait=RepairWait(self.arrays, self.attempt, self._is_stopped, self._send_alerts),
            left_out=self.spares.unusable,
        )
        self.next_env = next_start.prepare(finalized[0])

    def _is_stopped(self) -> bool:
        """Look after the job while the nodes wait; return whether the task is to end."""
        with self.tolerated("reading the switches"):
            self.stopping.check_final_switches()
        with self.tolerated("asking for the job's end"):
            self._work_rarely()
        return not self.may_restart

    def _send_alerts(self) -> None:
        with self.tolerated("sending alerts"):
            self.notify()
