"""The guard: the process that runs the body as its child and turns every reason to stop into a stop request.

An error in the guard never stops a healthy train: the guard reports a failed step and does the next one.

All nodes of the job wait until the body runs. Modules that only the end of an attempt needs are imported beside the
body (beside_body.py).
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.base.model import Job
from opsctl.base.ports import Clock, Runner
from opsctl.guard import attempt_record
from opsctl.guard.apply_switches import describe
from opsctl.guard.before_body import list_unfinalized, wants_node_check
from opsctl.guard.beside_body import BesideBody
from opsctl.guard.body import Body, start_body
from opsctl.guard.deadline import DeadlineFile
from opsctl.guard.escalation import Escalation, plan_stop, reads_stop_request
from opsctl.guard.free_space import await_space
from opsctl.guard.lost_node import find_lost_node, find_missing_node
from opsctl.guard.quiet_ranks import QuietRanks, make_quiet_ranks
from opsctl.guard.rank import find_free_port
from opsctl.guard.signals import Signals
from opsctl.guard.stop_request import StopKind, read_refusal, request_stop
from opsctl.guard.stragglers import Stragglers
from opsctl.host.processes import adopt_orphans, count_descendants, end_descendants, signal_below
from opsctl.launch.tracker_runs import tracker_variables
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import GuardSettings
from opsctl.state import switches
from opsctl.state.events import AttemptStarted, StopStep
from opsctl.state.journal import replay
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.state.switches import Switch

if TYPE_CHECKING:
    from opsctl.guard.hooks import CheckpointHook, TrainHooks
    from opsctl.guard.node_care import NodeCare
    from opsctl.guard.outcome import FinishedAttempt

log = logging.getLogger(__name__)
END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
RANKS_GRACE_S = 3.0
"""Time between TERM and KILL for processes that the body left behind."""
SRUN_GRACE_S = 0.5  # the same for processes that outlive a failed rank: they have had their grace


@dataclass(kw_only=True)
class Supervisor:
    """The guard of one attempt."""

    chain: TrainArrays
    rules: GuardSettings
    runner: Runner
    env: Mapping[str, str]
    """The environment of the batch job."""
    check_trusted: Callable[[], None]
    """Raises RunDirError if another user could have written the scripts."""
    revive_cron: Callable[[], None] = lambda: None
    """Restarts a dead cron driver. Called about once a minute."""
    make_care: Callable[[], NodeCare]
    """Builds the access to nodes."""
    notify: Callable[[], None] = lambda: None
    """Sends the alerts that the finalization of this attempt has caused."""
    attempt: Attempt = field(init=False)
    deadline: DeadlineFile = field(init=False)
    stragglers: Stragglers = field(init=False)
    quiet: QuietRanks = field(init=False)
    escalation: Escalation = field(init=False)
    beside: BesideBody = field(init=False)
    body: Body | None = None
    """The body, once it has been started."""
    _start_mark: int = -1
    """The mark of the newest checkpoint at the start."""
    _errors: dict[str, str] = field(default_factory=dict)
    """By step, the error of its last run. A step that succeeded has no entry."""
    _kill_at_s: float | None = None
    """When remaining processes are killed, on the monotonic clock; None before Slurm ends the job."""
    _has_unfinalized: bool = False
    """Whether earlier attempts are still to be finalized."""

    def __post_init__(self) -> None:
        self.attempt = self.run.attempt(attempt_record.attempt_name(self.env))
        self.deadline = DeadlineFile(
            run=self.run,
            attempt=self.attempt,
            job=self.env["SLURM_JOB_ID"],
            slurm=self.chain.slurm,
            clock=self.clock,
        )
        self.escalation = Escalation(self.clock)
        self.quiet = make_quiet_ranks(self.run, self.attempt, self.rules.quiet_seconds, self.clock)
        self.beside = BesideBody(run=self.run, attempt=self.attempt, runner=self.runner, env=self.env, clock=self.clock)
        self.beside.send_alerts = self._send_alerts
        self.stragglers = Stragglers(
            first_exit=self.run.attempt_logs(self.attempt.name) / "first-exit",
            grace_s=self.rules.exit_grace_seconds,
            clock=self.clock,
            misses_a_node=lambda: find_missing_node(self.runner, self.env),
        )

    @property
    def run(self) -> RunDir:
        return self.chain.run

    @property
    def clock(self) -> Clock:
        return self.chain.journal.clock

    @cached_property
    def hooks(self) -> TrainHooks:
        from opsctl.guard.hooks import TrainHooks  # noqa: PLC0415 (not needed before the body)

        return TrainHooks(run=self.run, journal=self.chain.journal, runner=self.runner)

    @cached_property
    def checkpoint_hook(self) -> CheckpointHook:
        from opsctl.guard.hooks import CheckpointHook  # noqa: PLC0415 (not needed before the body)

        return CheckpointHook(self.hooks, self.attempt.name, self.clock, newest=self._start_mark)

    @contextlib.contextmanager
    def tolerated(self, step: str) -> Iterator[None]:
        """Report an error inside the block and go on. A repeated error is reported once."""
        try:
            yield
        except OpsctlError as error:
            self._report_error(step, error.message)
        except Exception as error:  # noqa: BLE001 (a bug of the guard must not end the train)
            self._report_error(step, f"a bug of the guard: {error!r}", error)
        else:
            self._errors.pop(step, None)

    def _report_error(self, step: str, message: str, bug: Exception | None = None) -> None:
        if self._errors.get(step) != message:
            self._errors[step] = message
            log.warning("%s: %s", step, message, exc_info=bug)

    def supervise(self) -> int:
        """Run the body to its end, or leave without running the body. Return the exit code of the job."""
        adopt_orphans()
        signals = Signals((*END_SIGNALS, signal.SIGUSR1), self.on_signal)
        with self.tolerated("recording the start"):
            self._record_start()
        self.deadline.begin(self.env, self.tolerated)  # its file lies in the directory that the record has made
        self._finalize_earlier(leave=True)
        with self.tolerated("reading the switches"):
            self._check_switches()
        self._check_trusted()
        with self.tolerated("waiting for space"):
            await_space(self.chain, self.attempt, self.rules.fault_attempts, check_switches=self._check_switches)
        with self.tolerated("checking the nodes"):
            self._check_nodes()
        if stop_request := read_refusal(self.attempt):
            log.info("leaving without running the body: %s", stop_request.why)
            self._finalize_own()
            return {StopKind.REFUSED: 1, StopKind.NODE_REFUSED: 1, StopKind.TERM: 143}.get(stop_request.reason, 0)
        return self._run_body(signals)

    # --- before the body

    def _record_start(self) -> None:
        start = attempt_record.make_start(self.run, self.attempt, self.env, self.clock.now())
        self._start_mark = start.checkpoint
        attempt_record.write_start(self.run, self.attempt, start)
        self.chain.journal.append(AttemptStarted(attempt=self.attempt.name, nodes=start.nodes))
        log.info("attempt %s of %s starts on %s", self.attempt.name, self.run.name, start.nodes)

    def _finalize_earlier(self, *, leave: bool = False) -> None:
        """Finalize earlier attempts. With `leave`, ask to stop if their end is final or excludes one of our nodes.

        Slurm is not asked if the journal and the files show that nothing is left to be done.
        """
        self._has_unfinalized = True
        finalized: list[FinishedAttempt] = []
        with self.tolerated("finalizing earlier attempts"):
            if self._is_all_finalized():
                self._has_unfinalized = False
                return
            from opsctl.guard.finalize import finalize_ended  # noqa: PLC0415 (after a failure only)

            snapshot = self.chain.check()
            finalized = finalize_ended(self.chain, self.rules, snapshot, own=self.attempt.name, care=self.make_care())
            done = {self.attempt.name, *snapshot.history.finalized, *(finished.attempt for finished in finalized)}
            self._has_unfinalized = not done.issuperset(snapshot.history.started)
        if leave and finalized:
            from opsctl.guard.outcome import find_reason_to_leave  # noqa: PLC0415 (as above)

            if reason := find_reason_to_leave(finalized, attempt_record.expand_nodes(self.env)):
                self.ask_to_stop(*reason)
        self.beside.has_news |= bool(finalized)

    def _is_all_finalized(self) -> bool:
        """Whether every earlier attempt is finalized, and no submission is of unknown success."""
        history = replay(self.chain.journal.events())
        unfinalized = list_unfinalized(self.run, history)
        return not history.pending and all(attempt.name == self.attempt.name for attempt in unfinalized)

    def _check_trusted(self) -> None:
        with self.tolerated("checking who can write the body"):
            try:
                self.check_trusted()
            except RunDirError as error:
                self.ask_to_stop(StopKind.REFUSED, error.message)

    def _check_nodes(self) -> None:
        """Refuse faulty nodes, if the train can run without them."""
        if read_refusal(self.attempt) or not wants_node_check(self.run, self.rules):
            return
        from opsctl.guard.node_check import check_nodes  # noqa: PLC0415 (with GPUs only)

        nodes = attempt_record.expand_nodes(self.env)
        node_check = check_nodes(self.chain, self.make_care(), self.rules, self.attempt, nodes)
        if node_check.refusal:
            self.ask_to_stop(StopKind.NODE_REFUSED, node_check.refusal)
        elif not node_check.concession:
            log.debug("no node of this attempt is known to be faulty")
        else:
            log.warning("starting anyway: %s", node_check.concession)
            self.notify()

    # --- the body

    def _run_body(self, signals: Signals) -> int:
        self.deadline.await_first_answer()
        minutes = self.deadline.minutes_left(self.rules.stop_grace_seconds)
        env = attempt_record.make_body_env(self.run, self.attempt, self.env, minutes_left=minutes, rules=self.rules)
        with self.tolerated("naming the runs of trackers"):
            env |= tracker_variables(self.run, self.chain.journal.events(), self.env)
        with self.tolerated("finding a free port"):
            env["TRAIN_FREE_PORT"] = str(find_free_port())
        self.body = body = start_body(["bash", str(self.run.body)], env)
        log.info("the body runs")
        signal.signal(signal.SIGUSR2, lambda *_: body.pass_usr2_on())
        threading.Thread(target=self._work_beside, daemon=True).start()
        self._watch(signals, lambda: body.poll() is None)
        self.beside.finish()
        codes = (body.poll(), self.stragglers.code, 128 + signal.SIGTERM)
        code = next(code for code in codes if code is not None)
        log.info("the body ended with exit code %d", code)
        with self.tolerated("recording the exit"):
            self.run.write(self.attempt.body_exit, f"{code}\n")
        if code == 128 + signal.SIGTERM:
            self._await_own_term(signals)
        if self._kill_at_s is not None:
            # The shell ends before the ranks, which may still be saving.
            self._watch(signals, lambda: count_descendants() > 0)
        if self._kill_at_s is None:
            with self.tolerated("running the hook of the last checkpoint"):
                self.checkpoint_hook.finish()
        self._end_all_below()
        if self._has_unfinalized and self._kill_at_s is None:
            # Slurm may have reported a dead node's job as active at our start. That attempt is finalized before ours.
            self._finalize_earlier()
        self._finalize_own()
        return code

    def _watch(self, signals: Signals, runs: Callable[[], bool]) -> None:
        while runs():
            if self._kill_at_s is not None and self.clock.monotonic() > self._kill_at_s:
                log.warning("the body still runs %g s after TERM: ending it", self.rules.stop_grace_seconds)
                return
            if self.stragglers.are_late():
                log.warning("ending the body, which outlives a failed rank: %s", self.stragglers.why)
                return
            if self._is_kill_due() or self._is_hung():
                return
            signals.wait(self.rules.poll_seconds)
            with self.tolerated("reading the switches"):
                self._check_switches()
            with self.tolerated("sending the stop signal"):
                self._escalate()
            with self.tolerated("looking for a checkpoint"):
                self.checkpoint_hook.look()
            with self.tolerated("asking for the job's end"):
                was_due = self.deadline.refresh()
                if was_due and self._has_unfinalized:
                    self._finalize_earlier()
                    self.beside.send_news()
                if was_due:
                    self.revive_cron()

    def _await_own_term(self, signals: Signals) -> None:
        """Wait up to 1 s for our own TERM: Slurm signals the processes of a job one after another."""
        until = self.clock.monotonic() + 1
        while self._kill_at_s is None and self.clock.monotonic() < until:
            signals.wait(0.1)

    def _end_all_below(self) -> None:
        # Even after TERM, srun waits for a dead node.
        grace = SRUN_GRACE_S if self.stragglers.are_late() else RANKS_GRACE_S
        with self.tolerated("ending the remaining processes"):
            if count := count_descendants():
                log.info("sending TERM to %d remaining processes, and KILL after %g s", count, grace)
            for _ in range(3):  # processes forked meanwhile become our descendants
                if end_descendants(grace=grace) == 0:
                    return

    def _work_beside(self) -> None:
        with self.tolerated("recording the environment"):
            self.beside.work()

    # --- reasons to stop

    def ask_to_stop(self, reason: StopKind, why: str) -> None:
        now = self.clock.now()
        plan = plan_stop(
            reason, now, self.rules, reads_request=reads_stop_request(self.run), deadline=self.deadline.end
        )
        signal_name = plan.signal if plan.signal_at else ""
        times = {"at": now, "signal_at": plan.signal_at, "kill_at": plan.kill_at}
        if not request_stop(self.run, self.attempt, reason, why, signal=signal_name, **times):
            return
        self.escalation.begin(plan, now)
        log.info("stop requested (%s): %s", reason.value, why)
        self._note_stop_step("requested", f"{reason.value}: {why}")

    def _escalate(self) -> None:
        """Send the stop signal if it is due and the trainer does not react to the stop request."""
        if not self.escalation.is_signal_due(self.run, self.attempt):
            return
        self.escalation.has_signalled = True
        name = self.escalation.plan.signal
        log.warning("no reaction to the stop request: sending SIG%s to the ranks", name)
        self._note_stop_step(f"SIG{name}", "no reaction to the stop request")
        self.chain.slurm.signal(self.env["SLURM_JOB_ID"], name)
        if self.body:  # ranks that the body starts without srun
            signal_below(self.body.keeper, signal.Signals[f"SIG{name}"], spared=("srun",))

    def _is_kill_due(self) -> bool:
        """Whether neither the stop request nor the signal ended the body; then the ranks are killed."""
        if not self.escalation.is_kill_due(self.run, self.attempt):
            return False
        log.warning("no reaction to the stop request: ending the ranks")
        with self.tolerated("ending the ranks"):
            self._note_stop_step("killed", "no reaction to the stop request and the signal")
            self.chain.slurm.signal(self.env["SLURM_JOB_ID"], "KILL")
        return True

    def _is_hung(self) -> bool:
        """Whether the attempt certainly hangs; then the ranks are killed."""
        with self.tolerated("looking for a hang"):
            if why := self.quiet.find_hang():
                from opsctl.guard.hang_evidence import save_stacks  # noqa: PLC0415 (rarely needed)

                save_stacks(self.run, self.attempt, self.runner, self.env, self.clock)
                if not self.quiet.has_advanced():  # while the stacks were saved
                    self.ask_to_stop(StopKind.HUNG, why)
                    with self.tolerated("ending the ranks"):
                        self.chain.slurm.signal(self.env["SLURM_JOB_ID"], "KILL")
                    return True
        return False

    def _note_stop_step(self, step: str, why: str) -> None:
        with self.tolerated("recording a stop step"):
            self.chain.note(StopStep(attempt=self.attempt.name, step=step, why=why))

    def on_signal(self, number: signal.Signals) -> None:
        log.info("received %s", number.name)
        with self.tolerated(f"on {number.name}"):
            if number == signal.SIGUSR1:
                self.ask_to_stop(StopKind.TIME_LIMIT, "the time limit is near (SIGUSR1)")
                return
            if self._kill_at_s is None:
                self._kill_at_s = self.clock.monotonic() + self.rules.stop_grace_seconds
            self.ask_to_stop(StopKind.TERM, f"Slurm ends the job ({number.name})")

    def _check_switches(self) -> None:
        for switch, reason in ((Switch.KILL, StopKind.KILL), (Switch.PAUSE, StopKind.PAUSE)):
            if armed := switches.read(self.run, switch):
                self.ask_to_stop(reason, str(describe(armed)))

    # --- the end

    def _finalize_own(self) -> None:
        job: Job | None = None
        with self.tolerated("asking why Slurm ends the job"):
            job = find_lost_node(self.chain.slurm, self.attempt)
        finalized: list[FinishedAttempt] = []
        with self.tolerated("finalizing this attempt"):
            from opsctl.guard.finalize import finalize  # noqa: PLC0415 (imported beside the body, if that was long)

            finalized.append(finalize(self.chain, self.rules, self.attempt, job=job, care=self.make_care()))
        self._send_alerts()
        self.hooks.after_attempts(finalized)

    def _send_alerts(self) -> None:
        with self.tolerated("sending alerts"):
            self.notify()
