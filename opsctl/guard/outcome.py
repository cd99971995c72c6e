"""How an attempt ended, and what follows from it: all of the policy, and nothing that touches the world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from opsctl.diagnosis.causes import CauseKind
from opsctl.guard.stop_request import StopKind, StopRequest
from opsctl.model import JobState
from opsctl.settings.loader import GuardSettings
from opsctl.trainer.contract import StopReason, TrainerStop


class Outcome(StrEnum):
    """How an attempt ended."""

    FINISHED = "finished"
    """The last step is done."""
    KILLED = "killed"
    PAUSED = "paused"
    DEADLINE = "deadline"
    """The trainer left by itself before its time was up."""
    STOPPED = "stopped"
    """It saved and left because it was asked to: a signal, a preemption, the limit coming near."""
    EXITED = "exited"
    """It left with 0 and did not say why, as foreign trainers do."""
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    NODE_FAILED = "node-failed"
    HUNG = "hung"
    """opsctl cancelled it, for it hung."""
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    LOST = "lost"
    """It is over, and nobody knows how."""
    REFUSED = "refused"
    """It never began: others could have written what it would have run."""
    NODE_REFUSED = "node-refused"
    """It never began: a node of it is faulty."""
    SKIPPED = "skipped"
    """It never began: the finalization of an earlier attempt left nothing to do."""


class Action(StrEnum):
    """What is done about the tasks that are still queued."""

    CANCEL_QUEUED = "cancel-queued"
    HOLD_QUEUED = "hold-queued"
    EXCLUDE_NODES = "exclude-nodes"
    """Keep what is queued from the suspects, and go on."""
    CONTINUE = "continue"

    @property
    def is_final(self) -> bool:
        """Nothing more is to start by itself."""
        return self in {Action.CANCEL_QUEUED, Action.HOLD_QUEUED}


ACTIONS: dict[Outcome, Action] = {
    Outcome.FINISHED: Action.CANCEL_QUEUED,
    Outcome.KILLED: Action.CANCEL_QUEUED,
    Outcome.PAUSED: Action.HOLD_QUEUED,
    Outcome.DEADLINE: Action.CONTINUE,
    Outcome.STOPPED: Action.CONTINUE,
    Outcome.EXITED: Action.CONTINUE,
    Outcome.CRASHED: Action.CONTINUE,
    Outcome.TIMED_OUT: Action.CONTINUE,
    Outcome.NODE_FAILED: Action.CONTINUE,
    Outcome.HUNG: Action.CONTINUE,
    Outcome.CANCELLED: Action.CONTINUE,
    Outcome.PREEMPTED: Action.CONTINUE,
    Outcome.LOST: Action.CONTINUE,
    Outcome.REFUSED: Action.HOLD_QUEUED,
    Outcome.NODE_REFUSED: Action.CONTINUE,
    Outcome.SKIPPED: Action.CONTINUE,
}
"""What follows from the outcome alone."""

ACTION_BY_CAUSE: dict[CauseKind, Action] = {
    CauseKind.NODE: Action.EXCLUDE_NODES,
    CauseKind.GPU: Action.EXCLUDE_NODES,
    CauseKind.NETWORK: Action.EXCLUDE_NODES,
    CauseKind.CODE: Action.HOLD_QUEUED,
    CauseKind.STORAGE: Action.HOLD_QUEUED,
}
"""What follows from the cause, where the outcome alone would let it go on: nodes are excluded where the cause tells
which; what is queued is held once the same fault has ended `fault_attempts` lives in a row without a new checkpoint.
All
other classes follow from the outcome alone."""

BURNING = frozenset(
    {
        Outcome.CRASHED,
        Outcome.EXITED,
        Outcome.DEADLINE,
        Outcome.TIMED_OUT,
        Outcome.NODE_FAILED,
        Outcome.HUNG,
        Outcome.LOST,
    }
)
"""Endings that burn queued tasks when they come soon and without a new checkpoint: nobody outside asked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of how an attempt ended; what is not known is None, UNKNOWN or False."""

    stop: StopReason | None = None
    request: StopRequest | None = None
    code: int | None = None
    """The body's exit code."""
    state: JobState = JobState.UNKNOWN
    """Slurm's word for the job, once it was over."""
    is_last_step: bool = False
    """The last iteration line of the log is that of the last iteration."""
    at_its_limit: bool = False
    """It ended about when the job's time was up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttempt:
    """An attempt that is over: what end.json holds."""

    attempt: str
    outcome: Outcome
    action: Action
    why: str
    started: datetime
    ended: datetime
    new_checkpoint: bool
    kind: CauseKind = CauseKind.UNKNOWN
    """Whose fault it was, where that was asked."""
    cause: str = ""
    suspects: tuple[str, ...] = ()
    """Nodes of it that the train should not get again."""
    done: tuple[str, ...] = ()
    """What was done about them."""

    @property
    def minutes(self) -> float:
        return (self.ended - self.started).total_seconds() / 60


def decide_outcome(evidence: Evidence) -> tuple[Outcome, str]:
    """How it ended, and in words why we think so. The trainer's own word goes first, then what we asked of it."""
    for rule in (_by_trainer, _by_request, _by_log, _by_body, _by_slurm, _by_signal, _by_code):
        if found := rule(evidence):
            return found
    return Outcome.LOST, "it left no word, and Slurm does not know either"


_REASONS = {
    TrainerStop.FINISHED: Outcome.FINISHED,
    TrainerStop.KILL: Outcome.KILLED,
    TrainerStop.PAUSE: Outcome.PAUSED,
    TrainerStop.DEADLINE: Outcome.DEADLINE,
    TrainerStop.MEMORY: Outcome.CRASHED,
    TrainerStop.NAN: Outcome.CRASHED,
}
_REQUESTS = {
    StopKind.REFUSED: Outcome.REFUSED,
    StopKind.SKIPPED: Outcome.SKIPPED,
    StopKind.NODE_REFUSED: Outcome.NODE_REFUSED,
    StopKind.KILL: Outcome.KILLED,
    StopKind.PAUSE: Outcome.PAUSED,
    StopKind.HUNG: Outcome.HUNG,
}
_STATES = {
    JobState.TIMEOUT: Outcome.TIMED_OUT,
    JobState.DEADLINE: Outcome.TIMED_OUT,
    JobState.NODE_FAIL: Outcome.NODE_FAILED,
    JobState.BOOT_FAIL: Outcome.NODE_FAILED,
    JobState.CANCELLED: Outcome.CANCELLED,
    JobState.REVOKED: Outcome.CANCELLED,
    JobState.PREEMPTED: Outcome.PREEMPTED,
    JobState.OUT_OF_MEMORY: Outcome.CRASHED,
    JobState.FAILED: Outcome.CRASHED,
    JobState.COMPLETED: Outcome.EXITED,
}


def _by_trainer(evidence: Evidence) -> tuple[Outcome, str] | None:
    if evidence.stop is None or (outcome := _REASONS.get(evidence.stop.reason)) is None:
        return None
    detail = f": {evidence.stop.detail}" if evidence.stop.detail else ""
    return outcome, f"the trainer left at step {evidence.stop.step} ({evidence.stop.reason.value}){detail}"


def _by_request(evidence: Evidence) -> tuple[Outcome, str] | None:
    if evidence.request and (outcome := _REQUESTS.get(evidence.request.reason)):
        return outcome, evidence.request.why
    return _stopped(evidence) if evidence.stop else None


def _stopped(evidence: Evidence) -> tuple[Outcome, str]:
    """It left because it was asked to. Slurm asks the rest of a job to end after it has lost a node of it."""
    if evidence.state is JobState.NODE_FAIL:
        return Outcome.NODE_FAILED, f"Slurm says {evidence.state.value}"
    return Outcome.STOPPED, evidence.request.why if evidence.request else "the trainer was asked to stop"


def _by_log(evidence: Evidence) -> tuple[Outcome, str] | None:
    has_left = evidence.code == 0 or (evidence.code is None and evidence.state is JobState.COMPLETED)
    return (Outcome.FINISHED, "the log ends with the last iteration") if has_left and evidence.is_last_step else None


def _by_body(evidence: Evidence) -> tuple[Outcome, str] | None:
    if evidence.code != 0:
        return None
    if evidence.request:
        return _stopped(evidence)
    return Outcome.EXITED, "the body exited with 0"


def _by_slurm(evidence: Evidence) -> tuple[Outcome, str] | None:
    outcome = _STATES.get(evidence.state)
    if outcome is None or (outcome is Outcome.CRASHED and evidence.code is not None):
        return None
    return outcome, f"Slurm says {evidence.state.value}"


def _by_signal(evidence: Evidence) -> tuple[Outcome, str] | None:
    if evidence.request is None or evidence.request.reason is not StopKind.TERM:
        return None
    return (Outcome.TIMED_OUT if evidence.at_its_limit else Outcome.CANCELLED), evidence.request.why


def _by_code(evidence: Evidence) -> tuple[Outcome, str] | None:
    return (Outcome.CRASHED, f"the body exited with {evidence.code}") if evidence.code is not None else None


def is_burning(attempt: FinishedAttempt, rules: GuardSettings) -> bool:
    """Over soon, without a new checkpoint, and not because anybody wanted it."""
    return attempt.outcome in BURNING and attempt.minutes < rules.short_attempt_minutes and not attempt.new_checkpoint


def needs_diagnosis(outcome: Outcome, *, is_short: bool) -> bool:
    """Whether logs may tell why it ended. Who left with 0 in good time has nothing to explain."""
    failed = {Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.NODE_FAILED, Outcome.HUNG, Outcome.LOST}
    return outcome in failed or (is_short and outcome in BURNING)


NOT_STARTED = frozenset({Outcome.SKIPPED, Outcome.NODE_REFUSED})
"""No body was run, so that it says nothing of the train."""


def decide_action(ended: FinishedAttempt, attempts: Sequence[FinishedAttempt], rules: GuardSettings) -> FinishedAttempt:
    """With what follows from its cause and from the attempts before it; `attempts` are the latest, this one the
    last."""
    if ended.action is not Action.CONTINUE:
        return ended
    if loop := find_crash_loop(attempts, rules) or find_fault_loop(attempts, rules):
        return replace(ended, action=Action.HOLD_QUEUED, why=f"{ended.why}; {loop}")
    if ACTION_BY_CAUSE.get(ended.kind) is Action.EXCLUDE_NODES and ended.suspects:
        return replace(ended, action=Action.EXCLUDE_NODES)
    return ended


def find_fault_loop(attempts: Sequence[FinishedAttempt], rules: GuardSettings) -> str:
    """Why the chain is to be held, however long its attempts were; empty if it is not. A disk that is full for a moment
    is no reason, nor is a bug that the trainer gets past."""
    last = [attempt for attempt in attempts if attempt.outcome not in NOT_STARTED][-rules.fault_attempts :]
    is_same = len({attempt.cause for attempt in last}) == 1 and ACTION_BY_CAUSE.get(last[-1].kind) is Action.HOLD_QUEUED
    if len(last) < rules.fault_attempts or not is_same or any(attempt.new_checkpoint for attempt in last):
        return ""
    count = f"{len(last)} lives in a row" if len(last) > 1 else "an attempt"
    return f"a fault of {last[-1].kind.value} ended {count} without a new checkpoint: {last[-1].cause}"


def find_crash_loop(attempts: Sequence[FinishedAttempt], rules: GuardSettings) -> str:
    """Why the chain is to be held, judged by its latest attempts, the newest last; empty if it is not."""
    last = [attempt for attempt in attempts if attempt.outcome not in NOT_STARTED][-rules.short_attempts :]
    if len(last) < rules.short_attempts or not all(is_burning(attempt, rules) for attempt in last):
        return ""
    text = ", ".join(f"{attempt.attempt} {attempt.outcome.value}" for attempt in last)
    return f"{len(last)} lives in a row under {rules.short_attempt_minutes:g} min without a new checkpoint: {text}"
