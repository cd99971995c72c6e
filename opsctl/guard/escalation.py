"""The steps by which an attempt is stopped: the stop request, a signal to the ranks, the end of the ranks.

Trainers poll a file, listen to a signal, or do neither. The steps of one attempt are planned once, when the request is
made, and stand in the stop request, where `opsctl status` reads them.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from opsctl.base.ports import Clock
from opsctl.guard.stop_request import StopKind, StopPlan, StopRequest
from opsctl.launch.switch_readers import names_in_body
from opsctl.settings.loader import GuardSettings
from opsctl.state.run_dir import Attempt, RunDir
from opsctl.trainer.contract import Heartbeat, Phase, read_heartbeat

READER_S, OTHER_S = 300.0, 60.0
"""Default time from the stop request to the signal: for a trainer that is known to read the request, and any other."""
DEFAULT_SIGNAL = "TERM"
BY_PERSON = frozenset({StopKind.KILL, StopKind.PAUSE, StopKind.RESTART})
"""Requests of people. They are carried out even if the trainer does not react."""
READS_REQUEST = re.compile(
    r"TRAIN_STOP_REQUEST|TRAIN_KILL_SWITCH|TRAIN_PAUSE_SWITCH|\bopsctl(\.|_)(integrations|contract)"
)


@dataclass(slots=True)
class Escalation:
    """The steps of the newest stop request, on the monotonic clock of the guard."""

    clock: Clock
    plan: StopPlan = field(default_factory=StopPlan)
    has_signalled: bool = False
    _signal_at_s: float | None = None
    _kill_at_s: float | None = None
    _heartbeat: Heartbeat | None = None
    """The newest heartbeat, and when the guard first read it."""
    _read_at_s: float = 0.0

    def begin(self, plan: StopPlan, now: datetime) -> None:
        """Start the steps of a new request that was made `now`."""
        self.plan, self.has_signalled = plan, False
        self._signal_at_s = self._to_monotonic(plan.signal_at, now)
        self._kill_at_s = self._to_monotonic(plan.kill_at, now)

    def is_signal_due(self, run: RunDir, attempt: Attempt) -> bool:
        """Return whether the signal is to be sent now: the trainer does not react to the stop request."""
        return not self.has_signalled and self._is_due(self._signal_at_s, run, attempt)

    def is_kill_due(self, run: RunDir, attempt: Attempt) -> bool:
        """Return whether the ranks are to be ended now: the trainer reacts neither to the request nor to the signal."""
        return self._is_due(self._kill_at_s, run, attempt)

    def _is_due(self, at_s: float | None, run: RunDir, attempt: Attempt) -> bool:
        if at_s is None:
            return False
        is_reacting = self._is_reacting(run, attempt)  # also before the time has come, to date the heartbeat
        return self.clock.monotonic() >= at_s and not is_reacting

    def _is_reacting(self, run: RunDir, attempt: Attempt) -> bool:
        """Return whether the trainer saves or exits, within the time limit of that phase.

        The limit counts from the moment at which the guard first reads the heartbeat, after the stop request: the
        clock of the trainer's node may differ, and either clock may jump.
        """
        heartbeat = read_heartbeat(run.heartbeat / "train.json")
        if heartbeat != self._heartbeat:
            self._heartbeat, self._read_at_s = heartbeat, self.clock.monotonic()
        if heartbeat is None or heartbeat.attempt != attempt.name or heartbeat.phase not in {Phase.SAVE, Phase.EXIT}:
            return False
        return self.clock.monotonic() - self._read_at_s < heartbeat.limit_s

    def _to_monotonic(self, at: datetime | None, now: datetime) -> float | None:
        return None if at is None else self.clock.monotonic() + (at - now).total_seconds()


def plan_stop(
    kind: StopKind, now: datetime, rules: GuardSettings, *, reads_request: bool, deadline: datetime | None = None
) -> StopPlan:
    """Return the steps after a stop request that is made `now`. Pure.

    Without a `stop_signal` in the settings, only a request of a person is followed by a signal: a trainer that knows
    neither file nor signal trains until its time limit.
    """
    is_set = rules.stop_signal is not None
    signal = DEFAULT_SIGNAL if rules.stop_signal is None else rules.stop_signal
    signal = "" if signal == "none" else signal
    default_s = READER_S if reads_request else OTHER_S
    after_s = default_s if rules.stop_after_seconds is None else rules.stop_after_seconds
    if kind in BY_PERSON:
        signal_at = now + timedelta(seconds=after_s)
        kill_at = signal_at + timedelta(seconds=rules.stop_grace_seconds)
        return StopPlan(signal=signal, signal_at=signal_at if signal else None, kill_at=kill_at)
    if kind is StopKind.TIME_LIMIT and is_set and signal:
        left_s = max(0.0, (deadline - now).total_seconds()) if deadline else after_s
        return StopPlan(signal=signal, signal_at=now + timedelta(seconds=min(after_s, left_s / 2)))
    if kind is StopKind.TERM and is_set and signal not in {"", "TERM"}:  # Slurm itself sends TERM to the ranks
        return StopPlan(signal=signal, signal_at=now)
    return StopPlan()


def reads_stop_request(run: RunDir) -> bool:
    """Return whether the trainer certainly reads the stop request."""
    return names_in_body(run, READS_REQUEST)


def describe_plan(run: RunDir, rules: GuardSettings) -> str:
    """Return what follows a kill or pause switch, if the trainer does not react."""
    now = datetime.fromtimestamp(0, UTC)  # only differences count
    plan = plan_stop(StopKind.KILL, now, rules, reads_request=reads_stop_request(run))
    parts = [f"SIG{plan.signal} follows after {_ago(now, plan.signal_at)}"] if plan.signal_at else []
    parts += [f"its ranks are ended after {_ago(now, plan.kill_at)}"] if plan.kill_at else []
    return f"if it does not react, {' and '.join(parts)}"


def describe_stop(request: StopRequest, now: datetime) -> str:
    """Return what was done about a stop request and what comes next: `requested 4 min ago, SIGTERM in 60 s`."""
    if request.at is None:
        return request.why
    parts = [f"requested {_ago(request.at, now)} ago ({request.why})"]
    if request.kill_at and now >= request.kill_at:
        return f"{parts[0]}, no reaction; the ranks were ended"
    parts.append("no reaction so far")
    if request.signal_at and now >= request.signal_at:
        parts.append(f"SIG{request.signal} {_ago(request.signal_at, now)} ago")
    elif request.signal_at:
        parts.append(f"SIG{request.signal} in {_ago(now, request.signal_at)}")
    if request.kill_at:
        parts.append(f"the ranks are ended in {_ago(now, request.kill_at)}")
    return ", ".join(parts)


def _ago(begin: datetime, end: datetime) -> str:
    seconds = (end - begin).total_seconds()
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
