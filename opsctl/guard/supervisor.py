"""The process that the wrapper becomes: it runs the body as its child, and passes on to it whatever asks it to stop.

Nothing that goes wrong in here stops a healthy train: each step that fails is told, and the next one is done.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opsctl.errors import OpsctlError, RunDirError
from opsctl.guard import attempt_record, reproduction
from opsctl.guard.body import start_body
from opsctl.guard.deadline import DeadlineFile
from opsctl.guard.finalize import finalize, finalize_ended, is_row_of
from opsctl.guard.node_care import NodeCare
from opsctl.guard.node_check import check_nodes
from opsctl.guard.outcome import Action, FinishedAttempt
from opsctl.guard.signals import Signals
from opsctl.guard.stop_request import StopKind, read_stop_request, request_stop
from opsctl.guard.stragglers import Stragglers
from opsctl.host.processes import adopt_orphans, count_descendants, end_descendants
from opsctl.launch.train_arrays import TrainArrays
from opsctl.model import Job, JobState
from opsctl.nodesets import fold
from opsctl.ports import Clock, Runner
from opsctl.settings.loader import GuardSettings
from opsctl.state import switches
from opsctl.state.journal import EventKind
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.state.switches import Switch

ENDING = (signal.SIGTERM, signal.SIGINT)
NODE_LOST = "NodeDown"
"""Slurm's reason of a job one of whose nodes is down; the same in 22.05, 24.11 and 26.05."""
RANKS_GRACE = 3.0
"""Seconds between TERM and KILL for what the body left behind."""
SRUN_GRACE = 0.5
"""The same for what outlives a rank that failed: it has had its grace."""


@dataclass(kw_only=True)
class Supervisor:
    """One attempt of a train, from the side of the guard."""

    chain: TrainArrays
    rules: GuardSettings
    runner: Runner
    env: Mapping[str, str]
    """Of the batch job."""
    check_trusted: Callable[[], None]
    """Raises RunDirError if others could have written what would be run."""
    say: Callable[[str], None]
    keep_cron: Callable[[], None] = lambda: None
    """Revives cron where it died; called about once a minute."""
    care: NodeCare | None = None
    """What may be done about nodes."""
    notify: Callable[[], None] = lambda: None
    """Tells people what the finalization of this attempt has found, if they are to know."""
    attempt: Attempt = field(init=False)
    deadline: DeadlineFile = field(init=False)
    stragglers: Stragglers = field(init=False)
    has_begun: bool = False
    """Whether the body was started."""
    is_over: bool = False
    _told: dict[str, str] = field(default_factory=dict)
    """What went wrong at each step, if that is what happened when it was last done."""
    _late: float | None = None
    """When what still runs is ended, on the monotonic clock."""
    _unfinalized: bool = False

    def __post_init__(self) -> None:
        self.attempt = self.run.attempt(attempt_record.attempt_name(self.env))
        self.deadline = DeadlineFile(
            run=self.run,
            attempt=self.attempt,
            job=self.env["SLURM_JOB_ID"],
            scheduler=self.chain.scheduler,
            clock=self.clock,
        )
        self.stragglers = Stragglers(
            first_exit=self.run.attempt_logs(self.attempt.name) / "first-exit",
            grace=self.rules.exit_grace_seconds,
            clock=self.clock,
        )

    @property
    def run(self) -> RunDir:
        return self.chain.run

    @property
    def clock(self) -> Clock:
        return self.chain.journal.clock

    @contextlib.contextmanager
    def tolerated(self, what: str) -> Iterator[None]:
        """What goes wrong inside is told, once for as long as it goes wrong in the same way, and nothing more."""
        try:
            yield
        except OpsctlError as error:
            self._tell(what, error.message)
        except Exception:  # noqa: BLE001 (a bug of the guard must not end the train)
            self._tell(what, traceback.format_exc())
        else:
            self._told.pop(what, None)

    def _tell(self, what: str, wrong: str) -> None:
        if self._told.get(what) != wrong:
            self._told[what] = wrong
            self.say(f"{what}: {wrong}")

    def supervise(self) -> int:
        """Run the body to its end, or leave before it; the exit code that Slurm is to see."""
        adopt_orphans()
        signals = Signals((*ENDING, signal.SIGUSR1), self.on_signal)
        with self.tolerated("recording the start"):
            self._record_start()
        with self.tolerated("asking for the job's end"):
            self.deadline.refresh()
        self._finalize_earlier(leave=True)
        with self.tolerated("reading the switches"):
            self._look_at_switches()
        self._check_trusted()
        with self.tolerated("looking at the nodes"):
            self._check_nodes()
        if stop_request := read_stop_request(self.attempt):
            self.say(f"leaving without running the body: {stop_request.why}")
            self._finalize_own()
            return {StopKind.REFUSED: 1, StopKind.NODE_REFUSED: 1, StopKind.TERM: 143}.get(stop_request.reason, 0)
        return self._run_body(signals)

    # --- before the body

    def _record_start(self) -> None:
        start = attempt_record.make_start(self.run, self.attempt, self.env, self.clock.now())
        attempt_record.write_start(self.run, self.attempt, start)
        self.chain.journal.append(EventKind.ATTEMPT_STARTED, attempt=self.attempt.name, nodes=start.nodes)

    def _finalize_earlier(self, *, leave: bool = False) -> None:
        """Settle what nobody finalized. If that leaves nothing to do, and we may still `leave`, we do."""
        self._unfinalized = True
        finalized: list[FinishedAttempt] = []
        with self.tolerated("finalizing earlier attempts"):
            snapshot = self.chain.check()
            finalized = finalize_ended(self.chain, self.rules, snapshot, own=self.attempt.name, care=self.care)
            self._unfinalized = any(
                attempt not in snapshot.history.finalized
                and attempt not in {finished.attempt for finished in finalized}
                for attempt in snapshot.history.started
                if attempt != self.attempt.name
            )
        for finished in finalized:
            self.say(f"finalized {finished.attempt}: {finished.outcome.value}, {finished.action.value}: {finished.why}")
        if leave and (final := next((finished for finished in finalized if finished.action.is_final), None)):
            self.ask(StopKind.SKIPPED, f"{final.attempt} {final.outcome.value}: {final.why}")
        elif leave and (bad := self._excluded_by(finalized)):
            self.ask(StopKind.NODE_REFUSED, f"{bad.why}: {fold(bad.suspects)} is among the nodes of this attempt too")

    def _excluded_by(self, finalized: Sequence[FinishedAttempt]) -> FinishedAttempt | None:
        """The attempt whose end has excluded a node that we have got."""
        mine = set(attempt_record.expand_nodes(self.env))
        return next(
            (
                finished
                for finished in finalized
                if finished.action is Action.EXCLUDE_NODES and mine & set(finished.suspects)
            ),
            None,
        )

    def _check_trusted(self) -> None:
        with self.tolerated("checking who can write the body"):
            try:
                self.check_trusted()
            except RunDirError as error:
                self.ask(StopKind.REFUSED, error.message)

    def _check_nodes(self) -> None:
        """Refuse a node that is faulty, if the train can do without it."""
        if self.care is None or read_stop_request(self.attempt):
            return
        node_check = check_nodes(self.chain, self.care, self.rules, self.attempt, attempt_record.expand_nodes(self.env))
        if node_check.refused:
            self.ask(StopKind.NODE_REFUSED, node_check.refused)
        elif node_check.kept:
            self.say(f"going on all the same: {node_check.kept}")
            self.notify()

    # --- the body

    def _run_body(self, signals: Signals) -> int:
        minutes = self.deadline.minutes_left(self.rules.stop_grace_seconds)
        env = attempt_record.make_body_env(self.run, self.attempt, self.env, minutes_left=minutes)
        body = start_body(["bash", str(self.run.body)], env)
        self.has_begun = True
        signal.signal(signal.SIGUSR2, lambda *_: body.pass_usr2_on())
        threading.Thread(target=self._dump, daemon=True).start()
        self._watch(signals, lambda: body.poll() is None)
        code = body.poll()
        code = self.stragglers.code if code is None else code
        code = 128 + signal.SIGTERM if code is None else code
        with self.tolerated("recording the exit"):
            self.run.write(self.attempt.body_exit, f"{code}\n")
        if code == 128 + signal.SIGTERM:
            self._await_own_term(signals)
        if self._late is not None:
            # The shell goes first, and ranks may still be saving.
            self._watch(signals, lambda: count_descendants() > 0)
        self.is_over = True
        self._end_all_below()
        if self._unfinalized and self._late is None:
            # Slurm may have called a dead node's job active when we began; in its order, it comes before us.
            self._finalize_earlier()
        self._finalize_own()
        return code

    def _watch(self, signals: Signals, runs: Callable[[], bool]) -> None:
        while runs():
            if self._late is not None and self.clock.monotonic() > self._late:
                self.say(f"still running {self.rules.stop_grace_seconds:g} s after it was told to end: ending it")
                return
            if self.stragglers.are_late():
                self.say(f"still running {self.rules.exit_grace_seconds:g} s after a rank failed: ending it")
                return
            signals.wait(self.rules.poll_seconds)
            with self.tolerated("reading the switches"):
                self._look_at_switches()
            with self.tolerated("asking for the job's end"):
                asked = self.deadline.refresh()
                if asked and self._unfinalized:
                    self._finalize_earlier()
                if asked:
                    self.keep_cron()

    def _await_own_term(self, signals: Signals) -> None:
        """Slurm tells every process of a job to end, one after the other; the body may hear it before we do."""
        until = self.clock.monotonic() + 1
        while self._late is None and self.clock.monotonic() < until:
            signals.wait(0.1)

    def _end_all_below(self) -> None:
        # Also when it is told to end, srun waits for a dead node.
        grace = SRUN_GRACE if self.stragglers.are_late() else RANKS_GRACE
        with self.tolerated("ending what the body left"):
            for _ in range(3):  # what was forked meanwhile is ours by then
                if end_descendants(grace=grace) == 0:
                    return

    def _dump(self) -> None:
        with self.tolerated("recording what it runs with"):
            reproduction.dump(self.run, self.attempt, self.runner, self.env, is_over=lambda: self.is_over)

    # --- what asks it to stop

    def ask(self, reason: StopKind, why: str) -> None:
        if request_stop(self.run, self.attempt, reason, why):
            self.say(f"stop requested ({reason.value}): {why}")

    def on_signal(self, number: signal.Signals) -> None:
        with self.tolerated(f"on {number.name}"):
            if number == signal.SIGUSR1:
                self.ask(StopKind.TIME_LIMIT, "the time limit is near (SIGUSR1)")
                return
            if self._late is None:
                self._late = self.clock.monotonic() + self.rules.stop_grace_seconds
            self.ask(StopKind.TERM, f"Slurm ends the job ({number.name})")

    def _look_at_switches(self) -> None:
        for switch, reason in ((Switch.KILL, StopKind.KILL), (Switch.PAUSE, StopKind.PAUSE)):
            if armed := switches.read(self.run, switch):
                self.ask(reason, f"{switch.value} switch by {armed.by}" + (f": {armed.why}" if armed.why else ""))

    # --- the end

    def _lost_node(self) -> Job | None:
        """This attempt's job, if Slurm ends it for a node that it has lost: while the others complete, only the
        reason of
        the job says so."""
        stop_request = read_stop_request(self.attempt)
        if stop_request is None or stop_request.reason is not StopKind.TERM:
            return None
        own = [job for job in self.chain.scheduler.jobs() if is_row_of(job, self.attempt) and job.reason == NODE_LOST]
        return replace(own[0], state=JobState.NODE_FAIL) if own else None

    def _finalize_own(self) -> None:
        job: Job | None = None
        with self.tolerated("asking why Slurm ends the job"):
            job = self._lost_node()
        with self.tolerated("finalizing this attempt"):
            ended = finalize(self.chain, self.rules, self.attempt, job=job, care=self.care)
            self.say(f"{ended.outcome.value}, {ended.action.value}: {ended.why}")
            for each in ended.done:
                self.say(each)
        with self.tolerated("telling people"):
            self.notify()
