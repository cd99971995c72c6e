"""How an attempt ended, from its evidence. Pure functions."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.base.model import JobState
from opsctl.base.tables import read_package_table
from opsctl.guard.end_record import Outcome
from opsctl.guard.stop_request import LETS_START, StopKind, StopRequest
from opsctl.settings.loader import OnExit0
from opsctl.trainer.contract import StopReason

SIGNALLED_CODES = frozenset(
    128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
)
"""Exit codes of programs that a stop signal ended, also after a save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of how an attempt ended. None, UNKNOWN and False mean not known."""

    stop: StopReason | None = None
    request: StopRequest | None = None
    code: int | None = None
    """Exit code of the body."""
    state: JobState = JobState.UNKNOWN
    """Slurm's final state of the job."""
    is_last_step: bool = False
    """Whether the last iteration line of the log shows the last iteration."""
    has_steps_left: bool = False
    """Whether the last iteration line of the log shows an earlier iteration than the last."""
    is_end_saved: bool = False
    """Whether the newest checkpoint is that of the last iteration, and iterations are not counted within an epoch."""
    has_finished_file: bool = False
    """Whether the trainer has written the file in TRAIN_FINISHED."""
    was_signalled: bool = False
    """Whether a rank got a signal to stop, from anybody."""
    cancelled_line: str = ""
    """Slurm's line about the end of the step, if Slurm signalled the ranks before any of them failed."""
    finished_line: str = ""
    """A last line that says that the training is over."""
    unfinished_line: str = ""
    """A last line that says that the trainer stopped early."""
    failed_line: str = ""
    """A last line of a program that failed, after the last step."""
    epochs_left: str = ""
    """The newest line that names an epoch, if it is not the last epoch."""
    on_exit_0: OnExit0 | None = None
    """The rule for exit code 0 without a request; None: by the evidence."""
    is_near_limit: bool = False
    """Whether the attempt used most of its time, so that the trainer may have stopped itself for the time limit."""
    limits_itself: bool = False
    """Whether the command has an option with which the trainer stops itself after some time."""
    is_idle: bool = False
    """Whether neither a step nor a new checkpoint of the attempt is known."""
    lacks_signs: bool = False
    """Whether nothing at all shows that the attempt trained, also no statement of a trainer that had nothing to do."""
    is_idle_again: bool = False
    """Whether the attempt made no step, after an attempt that exited with 0 as well."""
    usage_line: str = ""
    """The first line of a help text that the body printed."""
    at_its_limit: bool = False
    """Whether the attempt ended at about the time limit of its job."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes that did not answer the guard."""


def decide_outcome(evidence: Evidence) -> tuple[Outcome, str]:
    """Return the outcome and the reason for it. The trainer's own stop reason counts first, then the stop request."""
    for rule in (
        _by_trainer,
        _by_file,
        _by_request,
        _by_log,
        _by_exit_0,
        _by_lost_nodes,
        _by_slurm,
        _by_signal,
        _by_code,
    ):
        if outcome := rule(evidence):
            return outcome
    return Outcome.LOST, "the attempt left no exit code, and Slurm does not know its end"


def _find(reporter: str, word: str) -> Outcome | None:
    """Return the outcome that outcomes.toml names for a word of the trainer, the stop request or Slurm."""
    name = read_package_table("guard/outcomes.toml")[reporter].get(word)
    return Outcome(name) if name else None


def _by_trainer(evidence: Evidence) -> tuple[Outcome, str] | None:
    if evidence.stop is None or (outcome := _find("trainer", evidence.stop.reason)) is None:
        return None
    detail = f": {evidence.stop.detail}" if evidence.stop.detail else ""
    return outcome, f"the trainer stopped at step {evidence.stop.step} ({evidence.stop.reason.value}){detail}"


def _by_request(evidence: Evidence) -> tuple[Outcome, str] | None:
    if evidence.request and (outcome := _find("request", evidence.request.reason)):
        return outcome, evidence.request.why
    return _stopped(evidence) if evidence.stop else None


def _stopped(evidence: Evidence) -> tuple[Outcome, str]:
    """Return the outcome of a stop on request. After a node failure, Slurm asks the rest of the job to stop too."""
    if evidence.state is JobState.NODE_FAIL:
        return Outcome.NODE_FAILED, f"Slurm reports {evidence.state.value}"
    return Outcome.STOPPED, evidence.request.why if evidence.request else "the trainer was asked to stop"


def _by_file(evidence: Evidence) -> tuple[Outcome, str] | None:
    if evidence.has_finished_file:
        return Outcome.FINISHED, "the trainer wrote TRAIN_FINISHED"
    return None


def _by_log(evidence: Evidence) -> tuple[Outcome, str] | None:
    """The last iteration ends the train. Many programs fail while they end, after the last checkpoint."""
    if not evidence.is_last_step or evidence.epochs_left:
        return None
    if _has_exited(evidence):
        return Outcome.FINISHED, "the log ends with the last iteration"
    if evidence.is_end_saved and evidence.code is not None:
        return Outcome.FINISHED, f"the last iteration is done and saved, before the body exited with {evidence.code}"
    return None


def _has_exited(evidence: Evidence) -> bool:
    return evidence.code == 0 or (evidence.code is None and evidence.state is JobState.COMPLETED)


def _by_exit_0(evidence: Evidence) -> tuple[Outcome, str] | None:
    """Exit code 0 without a stop request ends the train, unless the training is known to go on."""
    if not _has_exited(evidence):
        return None
    if evidence.request:
        return _stopped(evidence)
    if evidence.cancelled_line and evidence.was_signalled:  # not a helper step that the body itself ended
        return Outcome.STOPPED, _why_cancelled(evidence)
    exited = "the body exited with 0" if evidence.code == 0 else f"Slurm reports {evidence.state.value}"
    outcome, why = next((outcome, why) for applies, outcome, why in _exit_0_rules(evidence) if applies)
    return outcome, f"{exited}{why}"


_WITHOUT_STEP = (
    "ended without a step: neither its log nor a checkpoint shows any training; if the training is over: opsctl cancel;"
    " otherwise correct the command (opsctl edit), or describe its progress in [progress], then release"
)


def _exit_0_rules(evidence: Evidence) -> Iterator[tuple[bool, Outcome, str]]:
    """Yield whether a rule applies, its outcome and its reason, the strongest rule first."""
    rule, unfinished, finished = evidence.on_exit_0, evidence.unfinished_line, evidence.finished_line
    yield rule == "finish", Outcome.FINISHED, ', and on_exit_0 = "finish"'
    yield rule == "continue", Outcome.EXITED, ', and on_exit_0 = "continue"'
    yield bool(unfinished), Outcome.EXITED, f" after the line: {unfinished[:200]}"
    yield evidence.was_signalled, Outcome.EXITED, " after a signal to its ranks"
    yield bool(finished), Outcome.FINISHED, f" after the line: {finished[:200]}"
    yield bool(evidence.failed_line), Outcome.EXITED, f", but a program failed: {evidence.failed_line[:200]}"
    usage = f" and printed its usage: {evidence.usage_line[:120]}; correct the command by opsctl edit, then release"
    yield evidence.is_idle and bool(evidence.usage_line), Outcome.IDLE, usage
    has_no_work = evidence.is_idle_again and not evidence.has_steps_left and not evidence.epochs_left
    is_empty = evidence.lacks_signs and not evidence.is_near_limit and not has_no_work
    yield is_empty, Outcome.IDLE, f", but {_WITHOUT_STEP}"
    yield evidence.is_idle_again, Outcome.FINISHED, " again, this time without a step"
    yield evidence.has_steps_left, Outcome.EXITED, " before the last iteration"
    yield bool(evidence.epochs_left), Outcome.EXITED, f" before the last epoch: {evidence.epochs_left[:200]}"
    yield evidence.is_near_limit, Outcome.DEADLINE, " after most of the task's time"
    yield evidence.limits_itself, Outcome.EXITED, ", and the command limits its own time"
    unseen = "; no step of this attempt is known either" if evidence.is_idle else ""
    yield True, Outcome.FINISHED, f"; no stop request and no further step are known{unseen}"


def _by_lost_nodes(evidence: Evidence) -> tuple[Outcome, str] | None:
    if not evidence.lost_nodes:
        return None
    return Outcome.NODE_FAILED, f"{', '.join(evidence.lost_nodes)} did not answer the guard"


def _by_slurm(evidence: Evidence) -> tuple[Outcome, str] | None:
    outcome = _find("slurm", evidence.state)
    if outcome is None or (outcome is Outcome.CRASHED and evidence.code is not None):
        return None
    return outcome, f"Slurm reports {evidence.state.value}"


def _by_signal(evidence: Evidence) -> tuple[Outcome, str] | None:
    if evidence.request is None:
        return _by_step(evidence)
    names_signal = evidence.was_signalled and bool(evidence.unfinished_line)
    if evidence.request.reason in LETS_START and (evidence.code in SIGNALLED_CODES or names_signal):
        return Outcome.STOPPED, evidence.request.why
    if evidence.request.reason is not StopKind.TERM:
        return _by_step(evidence) if evidence.request.reason in LETS_START else None
    outcome = Outcome.TIMED_OUT if evidence.at_its_limit else Outcome.CANCELLED
    return outcome, evidence.request.why


def _by_step(evidence: Evidence) -> tuple[Outcome, str] | None:
    """Return the outcome if Slurm ended the ranks, but not the guard: before a preemption only steps get a signal."""
    if not evidence.cancelled_line or evidence.code is None:
        return None
    why = _why_cancelled(evidence)
    if evidence.at_its_limit:
        return Outcome.TIMED_OUT, why
    return Outcome.PREEMPTED if "PREEMPTION" in evidence.cancelled_line else Outcome.CANCELLED, why


def _why_cancelled(evidence: Evidence) -> str:
    return f"Slurm signalled the ranks, as a preemption and scancel do ({evidence.cancelled_line})"


def _by_code(evidence: Evidence) -> tuple[Outcome, str] | None:
    if evidence.code is None:
        return None
    return Outcome.CRASHED, f"the body exited with {evidence.code}"
