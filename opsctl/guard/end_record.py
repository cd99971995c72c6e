"""The record of an attempt's end (end.json): the outcome, the cause and the action."""

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice

from opsctl.diagnosis.causes import CauseKind
from opsctl.state.files import MAX_RECORD_BYTES, find_archive, read_change_s, read_json
from opsctl.state.reasons import Reason
from opsctl.state.records import decode
from opsctl.state.run_dir import Attempt, RunDir

MAX_RANK_LOGS = 4096
"""Logs of ranks whose last write is looked up."""


class Outcome(StrEnum):
    """How an attempt ended."""

    FINISHED = "finished"
    """The training is over: the last step is done, or the body exited with 0 and no further step is known."""
    KILLED = "killed"
    PAUSED = "paused"
    DEADLINE = "deadline"
    """The trainer stopped by itself before the time limit."""
    STOPPED = "stopped"
    """The trainer saved and stopped on request: a signal, a preemption, or the near time limit."""
    EXITED = "exited"
    """The body exited with 0 and gave no reason, and the training is to go on."""
    IDLE = "idle"
    """The body exited with 0 without any sign of training."""
    RESTARTED = "restarted"
    """A person asked for a restart in the same allocation."""
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    NODE_FAILED = "node-failed"
    HUNG = "hung"
    """opsctl cancelled the attempt because it hung."""
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    LOST = "lost"
    """The attempt is over, and neither Slurm nor its files show how it ended."""
    REFUSED = "refused"
    """The body was not started: another user could have written the scripts."""
    NODE_REFUSED = "node-refused"
    """The body was not started: a node is faulty."""
    SKIPPED = "skipped"
    """The body was not started: the finalization of an earlier attempt ended the train."""


class Action(StrEnum):
    """What is done about the queued tasks."""

    CANCEL_QUEUED = "cancel-queued"
    HOLD_QUEUED = "hold-queued"
    EXCLUDE_NODES = "exclude-nodes"
    """Exclude the suspect nodes for all queued tasks, and go on."""
    CONTINUE = "continue"
    PROPOSE_CANCEL = "propose-cancel"
    """Hold the queued tasks until a person has cancelled them, as the policy of the site says."""
    PROPOSE_HOLD = "propose-hold"

    @property
    def is_final(self) -> bool:
        """Whether no queued task is to start by itself."""
        return self in {Action.CANCEL_QUEUED, Action.HOLD_QUEUED, Action.PROPOSE_CANCEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProgress:
    """The progress of one attempt."""

    new_checkpoint: bool
    """Whether a new checkpoint appeared in any directory that settings, command or log name."""
    resume_step: int | None = None
    """The step after which the attempt went on, as its first step shows; None if unknown."""
    highest_step: int | None = None
    """The highest step that the attempt reached; None if no step is known."""
    resume_epoch: float | None = None
    """The epoch after which the attempt went on; None if no epoch is known."""
    highest_epoch: float | None = None
    counts_anew: bool = False
    """Whether the trainer counted its steps from the beginning though it went on: the steps show no progress."""
    resumed_from: str = ""
    """What the trainer said about the checkpoint from which it went on."""
    save_gap_minutes: float | None = None
    """The longest time between two new checkpoints, or from the start to the only one; None if unknown."""
    has_unclear_saves: bool = False
    """Whether the checkpoints show neither progress nor its lack: none is in sight, or an old one was rewritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttempt(AttemptProgress):
    """A finalized attempt: the content of end.json."""

    attempt: str
    outcome: Outcome
    action: Action
    why: str
    started: datetime
    ended: datetime
    code: int | None = None
    """Exit code of the body; None if unknown."""
    limit_minutes: float | None = None
    """The time from the start to the time limit of the task; None if unknown."""
    kind: CauseKind = CauseKind.UNKNOWN
    """The kind of cause, if the attempt was diagnosed."""
    cause: str = ""
    signature: str = ""
    """What tells the fault from others of the same cause: the message of an exception."""
    suspects: tuple[str, ...] = ()
    """Nodes of the attempt that the train should not get again."""
    done: tuple[str, ...] = ()
    """What was done about the suspects."""
    last_output: datetime | None = None
    """When a rank last wrote to its log; None if unknown."""
    exit_why: str = ""
    """How the attempt ended: `why` without the diagnosis and the action."""
    reason: Reason | None = None
    """Why the train is held, if it does not advance."""

    @property
    def minutes(self) -> float:
        return (self.ended - self.started).total_seconds() / 60


def read_end(attempt: Attempt) -> FinishedAttempt | None:
    """Return the result of the finalization, or None before it; of one that cannot be read, an end of unknown cause."""
    try:
        fields = read_json(attempt.end, MAX_RECORD_BYTES)
        if isinstance(fields, dict) and "says" in fields:  # of an earlier version, with the message in the words
            fields = {**fields, "signature": fields["says"]}
        return decode(FinishedAttempt, fields)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        at = datetime.fromtimestamp(read_change_s(attempt.end) or 0, UTC)
        return FinishedAttempt(
            attempt=attempt.name,
            outcome=Outcome.LOST,
            action=Action.CONTINUE,
            why=f"{attempt.end} cannot be read: {error!s:.200}",
            started=at,
            ended=at,
            new_checkpoint=False,
            has_unclear_saves=True,
        )


def date_last_output(run: RunDir, attempt: Attempt) -> datetime | None:
    """Return the time of the last write to any rank's log; None if unknown. An archive has the time of its newest."""
    archive = find_archive(run.logs / attempt.name)
    if archive and (packed_s := read_change_s(archive)):
        return datetime.fromtimestamp(packed_s, UTC)
    with suppress(OSError), os.scandir(run.logs / attempt.name) as entries:
        logs = (entry for entry in islice(entries, MAX_RANK_LOGS) if entry.name.endswith(".log"))
        latest = max((entry.stat().st_mtime for entry in logs), default=None)
        return None if latest is None else datetime.fromtimestamp(latest, UTC)
    return None
