"""The stop of an attempt: every reason becomes a stop request, then a signal to the ranks, then their end."""

import contextlib
import logging
import os
import select
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import FrameType

from opsctl.guard.apply_switches import describe
from opsctl.guard.body import Body
from opsctl.guard.deadline import DeadlineFile
from opsctl.guard.escalation import Escalation, plan_stop, reads_stop_request
from opsctl.guard.stop_request import LETS_START, StopKind, StopRequest, read_refusal, read_stop_request, request_stop
from opsctl.guard.tolerated import Tolerated
from opsctl.host.processes import signal_below
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.loader import GuardSettings
from opsctl.state import switches
from opsctl.state.events import StopStep
from opsctl.state.run_dir import Attempt
from opsctl.state.switches import Switch

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Stopping:
    """Asks the trainer of one attempt to stop, and carries out what follows if the trainer does not react."""

    arrays: TrainArrays
    rules: GuardSettings
    attempt: Attempt
    job: str
    """Slurm's id of the job, to whose steps signals are sent."""
    deadline: DeadlineFile
    tolerated: Tolerated
    body: Body | None = None
    """The body, once it has been started."""
    own_request: StopRequest | None = None
    """What this process has asked for, the strongest, also if that could not be written."""
    escalation: Escalation = field(init=False)
    kill_at_s: float | None = None
    """When remaining processes are killed, on the monotonic clock; None before Slurm ends the job."""

    def __post_init__(self) -> None:
        self.escalation = Escalation(self.arrays.journal.clock)

    @property
    def refusal(self) -> StopRequest | None:
        """Why the body must not start; None if it may. On a full disk, what was asked for stands nowhere else."""
        return self.own_request or read_refusal(self.attempt)

    def request(self, reason: StopKind, why: str) -> None:
        """Ask the trainer to save and stop. A reason that ranks lower than an earlier one changes nothing."""
        run, now = self.arrays.run, self.arrays.journal.clock.now()
        if reason not in LETS_START and (self.own_request is None or reason.is_above(self.own_request.reason)):
            self.own_request = StopRequest(reason=reason, why=why, at=now)
        plan = plan_stop(reason, now, self.rules, reads_request=reads_stop_request(run), deadline=self.deadline.end)
        if not request_stop(run, self.attempt, reason, why, at=now, plan=plan):
            return
        self.escalation.begin(plan, now)
        log.info("stop requested (%s): %s", reason.value, why)
        self._note("requested", f"{reason.value}: {why}")

    def check_final_switches(self) -> None:
        """Request a stop if the kill switch or the pause switch is armed."""
        for switch, reason in ((Switch.KILL, StopKind.KILL), (Switch.PAUSE, StopKind.PAUSE)):
            if armed := switches.read(self.arrays.run, switch):
                self.request(reason, str(describe(armed)))

    def check_switches(self) -> None:
        """Request a stop for each armed switch. A restart switch counts while the body runs, and once."""
        self.check_final_switches()
        run = self.arrays.run
        armed = switches.read(run, Switch.RESTART) if self.body else None
        if armed and switches.disarm(run, Switch.RESTART):
            self.request(StopKind.RESTART, str(describe(armed)))

    def on_signal(self, number: signal.Signals) -> None:
        """Take Slurm's warning of the time limit (USR1) or the end of the job (TERM)."""
        log.info("received %s", number.name)
        with self.tolerated(f"on {number.name}"):
            if number == signal.SIGUSR1:
                self.request(StopKind.TIME_LIMIT, "the time limit is near (SIGUSR1)")
                return
            if self.kill_at_s is None:
                self.kill_at_s = self.arrays.journal.clock.monotonic() + self.rules.stop_grace_seconds
            self.request(StopKind.TERM, f"Slurm ends the job ({number.name})")

    def send_due_signal(self) -> None:
        """Send the stop signal if it is due and the trainer does not react to the stop request."""
        if not self.escalation.is_signal_due(self.arrays.run, self.attempt):
            return
        self.escalation.has_signalled = True
        name = self.escalation.plan.signal
        log.warning("no reaction to the stop request: sending SIG%s to the ranks", name)
        self._note(f"SIG{name}", "no reaction to the stop request")
        self.arrays.slurm.signal(self.job, name)
        if self.body:  # ranks that the body starts without srun
            signal_below(self.body.subreaper, signal.Signals[f"SIG{name}"], spared=("srun",))

    def kill_if_due(self) -> bool:
        """Kill the ranks if neither request nor signal has helped. Return whether the wait for the ranks is over."""
        if self.kill_at_s is not None and self.arrays.journal.clock.monotonic() > self.kill_at_s:
            log.warning("the body still runs %g s after TERM: ending it", self.rules.stop_grace_seconds)
            return True
        if not self.escalation.is_kill_due(self.arrays.run, self.attempt):
            return False
        log.warning("no reaction to the stop request: ending the ranks")
        self._note("killed", "no reaction to the stop request and the signal")
        self._end_ranks()
        return True

    def end_hung(self, why: str) -> None:
        """End the ranks of an attempt that certainly hangs."""
        self.request(StopKind.HUNG, why)
        self._end_ranks()

    def end_if_requested(self) -> bool:
        """End the ranks if a watchdog has found that the attempt hangs; return whether one has."""
        request = read_stop_request(self.attempt)
        if request is None or request.reason is not StopKind.HUNG:
            return False
        log.warning("ending the ranks: %s", request.why)
        self._end_ranks()
        return True

    def _end_ranks(self) -> None:
        with self.tolerated("ending the ranks"):
            self.arrays.slurm.signal(self.job, "KILL")

    def _note(self, step: str, why: str) -> None:
        with self.tolerated("recording a stop step"):
            self.arrays.note(StopStep(attempt=self.attempt.name, step=step, why=why))


class Signals:
    """Calls `on_signal` for each signal as it arrives, even while a command of Slurm does not answer."""

    def __init__(self, numbers: Collection[int], on_signal: Callable[[signal.Signals], None]) -> None:
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

        def handle(number: int, _: FrameType | None) -> None:
            on_signal(signal.Signals(number))

        for number in numbers:
            signal.signal(number, handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # blocked while one guard replaced another

    def wait(self, timeout_s: float) -> bool:
        """Wait until a signal arrives or a child ends, for at most `timeout_s`. Return whether one has."""
        ready, _, _ = select.select([self._read], [], [], timeout_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 65536)
        return bool(ready)
