"""The status of a train, from one snapshot of the queue and the files of the run directory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.alerts.ledger_files import OpenAlert
from opsctl.base.model import Job, JobState
from opsctl.base.nodesets import expand_if_list
from opsctl.base.statements import state
from opsctl.base.units import format_time
from opsctl.guard.attempt_record import read_start
from opsctl.guard.deadline import read_limit_s
from opsctl.guard.escalation import describe_stop
from opsctl.guard.free_space import MAX_WAIT_S, find_awaited
from opsctl.guard.stop_request import read_stop_request
from opsctl.launch.switch_readers import find_unanswered_save
from opsctl.launch.tracker_runs import tracker_links
from opsctl.launch.train_arrays import TrainSnapshot, take_snapshot
from opsctl.launch.wait_reasons import (
    WaitKind,
    classify_wait,
    explain_wait,
    is_limit,
    is_own_hold,
    with_first_start,
    word,
)
from opsctl.monitor.damaged_files import list_damages
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import Journal, TrainHistory
from opsctl.state.requests import read_requests
from opsctl.state.run_dir import RunDir
from opsctl.state.switches import Armed, Request, find_armed
from opsctl.telemetry.progress.iteration_lines import is_pattern_useless
from opsctl.telemetry.progress.run_progress import Progress, TaskPace, read_progress
from opsctl.telemetry.progress.step_pace import measure_waits
from opsctl.telemetry.progress.train_settings import read_settings, read_step_pattern

STATES = ("running", "queued", "held", "ended", "finished", "not submitted", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Queued tasks of one array that wait for the same reason."""

    array: str
    tasks: int
    reason: str
    why: str
    start: datetime | None
    kind: WaitKind = WaitKind.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The queued tasks do not suffice for the remaining steps."""

    needed: int
    queued: int
    command: str
    """Queues the missing tasks."""

    def __str__(self) -> str:
        return f"at this pace, tasks still needed: {self.needed}, queued: {self.queued}; {self.command}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    job: str
    state: str
    nodes: str
    since: datetime | None
    ends: datetime | None
    spares: tuple[str, ...] = ()
    """Nodes of the job on which no rank runs."""
    restarts: int = 0
    """How often the trainer was started again in this allocation."""
    repair_until: datetime | None = None
    """Until when the nodes wait for a repair; None if they do not."""
    repair_gpu_hours: float = 0.0
    """What the whole wait costs."""
    full_disk: str = ""
    """The directory on a full disk for which the attempt waits."""

    @property
    def in_place(self) -> str:
        """Spares, restarts and the wait for a repair in words; empty without any."""
        spares = f", spare: {', '.join(self.spares)}" if self.spares else ""
        times = "once" if self.restarts == 1 else f"{self.restarts} times"
        restarts = f", restarted in place {times}" if self.restarts else ""
        waits = f"waits for space on the disk of {self.full_disk}" if self.full_disk else self.repair
        return spares + restarts + (f", {waits}" if waits else "")

    @property
    def repair(self) -> str:
        """The wait for a repair in words; empty if the nodes do not wait."""
        if self.repair_until is None:
            return ""
        return f"waits for a repair until {format_time(self.repair_until)}, up to {self.repair_gpu_hours:.3g} GPU hours"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedAttempt:
    """An attempt that started and is not finalized."""

    attempt: str
    nodes: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAttempt:
    attempt: str
    outcome: str
    action: str
    why: str
    at: datetime
    advice: str = ""
    """Remedy for the diagnosed cause; empty without a diagnosis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStatus:
    """The data of `opsctl status` for one train."""

    train: str
    state: str
    """`running`, `queued`, `held`, `ended`, `finished`, `not submitted` or `unknown`."""
    slurm: str
    """Why the queue is unknown; empty if Slurm answered."""
    running: tuple[Running, ...] | None = None
    """None if Slurm did not answer."""
    waiting: tuple[Waiting, ...] | None = None
    begun: StartedAttempt | None = None
    progress: Progress | None = None
    last_attempt: LastAttempt | None = None
    stop: str = ""
    """What was done to stop the running attempt and what comes next; empty without a stop request."""
    switches: tuple[Armed, ...] = ()
    requests: tuple[Request, ...] = ()
    alerts: tuple[OpenAlert, ...] = ()
    """Open alerts of the train, the worst first."""
    links: tuple[str, ...] = ()
    """Addresses of the train's runs in experiment trackers, as far as they are known."""
    notes: tuple[str, ...] = ()
    """Problems that need a person."""
    shortage: Shortage | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and a sentence about the shortage."""
        return (*self.notes, *([str(self.shortage)] if self.shortage else []))


def read_status(
    run: RunDir,
    journal: Journal,
    jobs: Sequence[Job] | None,
    now: datetime,
    alerts: Sequence[OpenAlert] = (),
    *,
    away: str = "",
) -> TrainStatus:
    """Return the status of `run` from the whole queue and the open alerts of all trains.

    Without a queue, `away` is the reason, and the status comes from the run directory only.
    """
    snapshot = take_snapshot(run, journal, jobs or ())
    last, begun, damages = _last_attempt(snapshot), _begun(run, snapshot), list_damages(journal)
    requests, bad = read_requests(run)
    notes = [*damages, *(f"{len(bad)} entries of {run.requests} are no requests, such as {first}" for first in bad[:1])]
    state = _state(snapshot, last)
    if (jobs is None and state != "not submitted") or (damages and not snapshot.is_queued):
        # Without an answer of Slurm, a running task looks like an ended one; so does one whose submission was lost.
        state = "unknown"
    if jobs is None:
        progress = _read_progress(run, begun.attempt if begun else "")
    else:
        progress = _progress_from_queue(run, snapshot, state, now)
        notes += [*_notes(run, snapshot), *_describe_save(run, snapshot, now)]
    return TrainStatus(
        train=run.name,
        state=state,
        slurm=away,
        running=None if jobs is None else tuple(_running(run, snapshot, job, now) for job in snapshot.active),
        waiting=None if jobs is None else tuple(_waiting(run, job, snapshot, now) for job in snapshot.waiting),
        begun=begun,
        progress=progress,
        last_attempt=last,
        stop=_stop(run, snapshot, begun, now) if jobs is not None else "",
        switches=tuple(find_armed(run)),
        requests=tuple(requests),
        alerts=tuple(alert for alert in alerts if alert.train == run.name),
        links=tracker_links(run, journal.events()),
        notes=tuple(notes),
        shortage=None if jobs is None else _find_shortage(run, snapshot, progress),
    )


def _describe_save(run: RunDir, snapshot: TrainSnapshot, now: datetime) -> list[str]:
    """Say that the running task does not answer the save switch, or probably never will."""
    start = snapshot.active[0].start if snapshot.active else None
    save = find_unanswered_save(run, start, now)
    if save is None or (save.is_read and not save.is_overdue):
        return []
    says = state("checkpoint.unanswered", save.why, train=run.name, age_s=save.age_s)
    return [f"{says}; opsctl save-switch {run.name} --disarm takes it back"]


def unreadable(run: RunDir, why: str, *, away: str = "") -> TrainStatus:
    return TrainStatus(train=run.name, state="unknown", slurm=away, notes=(f"cannot be read: {why}",))


def _state(snapshot: TrainSnapshot, last: LastAttempt | None) -> str:
    if snapshot.active:
        return "held" if snapshot.history.repair else "running"
    if snapshot.waiting:
        return "held" if all(job.is_held for job in snapshot.waiting) else "queued"
    if last and last.outcome == "finished":
        return "finished"
    history = snapshot.history
    if history.pending or set(history.started) - set(history.finalized):
        return "unknown"
    return "ended" if history.arrays or history.started else "not submitted"


def _running(run: RunDir, snapshot: TrainSnapshot, job: Job, now: datetime) -> Running:
    attempt = run.attempt(snapshot.history.newest_attempt(job.full_id))
    start = read_start(attempt)
    used = expand_if_list(start.nodes) if start else ()
    repair = snapshot.history.repair
    repair = repair if repair and repair.attempt == attempt.name else None
    return Running(
        job=job.full_id,
        state=job.state.value,
        nodes=job.nodes,
        since=job.start,
        ends=job.end,
        spares=tuple(node for node in expand_if_list(job.nodes) if node not in used) if used else (),
        restarts=attempt.number,
        repair_until=repair.until if repair else None,
        repair_gpu_hours=repair.gpu_hours if repair else 0.0,
        full_disk=_find_awaited_disk(run, snapshot, attempt.name, now),
    )


def _find_awaited_disk(run: RunDir, snapshot: TrainSnapshot, attempt: str, now: datetime) -> str:
    """Return the full disk for which the guard of a young attempt waits; empty for none."""
    began = snapshot.history.started.get(attempt)
    if began is None or (now - began).total_seconds() > MAX_WAIT_S or not (settings := read_settings(run)):
        return ""
    return str(find_awaited(run, snapshot.history, settings.guard.fault_attempts) or "")


def _waiting(run: RunDir, job: Job, snapshot: TrainSnapshot, now: datetime) -> Waiting:
    job = with_first_start(job, read_limit_s(run.config) / 60, now) if job.start else job
    is_ours = is_own_hold(job, snapshot.history)
    return Waiting(
        array=job.array,
        tasks=len(job.tasks) or 1,
        reason=word(job),
        why=explain_wait(job, is_ours=is_ours),
        start=job.start,
        kind=classify_wait(job, is_ours=is_ours),
    )


def _last_attempt(snapshot: TrainSnapshot) -> LastAttempt | None:
    if not snapshot.history.finalized:
        return None
    event = list(snapshot.history.finalized.values())[-1]
    diagnosed = snapshot.history.diagnosed.get(event.attempt)
    return LastAttempt(
        at=event.when,
        attempt=event.attempt,
        outcome=event.outcome,
        action=event.action,
        why=_explain_end(event, snapshot.history),
        advice=diagnosed.advice if diagnosed and event.action != "exclude-nodes" else "",  # done
    )


def _explain_end(event: AttemptFinalized, history: TrainHistory) -> str:
    """Return why an attempt ended; for Slurm, a person who cancels the train is a signal."""
    cancelled = history.cancelled
    if cancelled is None or event.outcome != "cancelled":
        return event.why
    return ": ".join(filter(None, (f"opsctl cancel by {cancelled.actor.partition('@')[0]}", str(cancelled.reason))))


def _begun(run: RunDir, snapshot: TrainSnapshot) -> StartedAttempt | None:
    history = snapshot.history
    attempt = next((name for name in reversed(history.started) if name not in history.finalized), None)
    if attempt is None:
        return None
    start = read_start(run.attempt(attempt))
    return StartedAttempt(attempt=attempt, nodes=start.nodes if start else "", at=snapshot.history.started[attempt])


def _stop(run: RunDir, snapshot: TrainSnapshot, begun: StartedAttempt | None, now: datetime) -> str:
    """Return what was done to stop the running attempt; empty without a stop request."""
    if not snapshot.active or begun is None:
        return ""
    request = read_stop_request(run.attempt(begun.attempt))
    return describe_stop(request, now) if request else ""


def _progress_from_queue(run: RunDir, snapshot: TrainSnapshot, state: str, now: datetime) -> Progress | None:
    active = next((job for job in snapshot.active if job.state is JobState.RUNNING), None)
    attempt = snapshot.history.newest_attempt(active.full_id) if active else ""
    pace = _pace(run, snapshot, active, now) if state in {"running", "queued"} else None
    return _read_progress(run, attempt, pace)


def _read_progress(run: RunDir, attempt: str, pace: TaskPace | None = None) -> Progress | None:
    start = read_start(run.attempt(attempt)) if attempt else None
    return read_progress(run, attempt=attempt, begin=start.main_log if start else 0, pace=pace)


def _pace(run: RunDir, snapshot: TrainSnapshot, active: Job | None, now: datetime) -> TaskPace:
    running_s = math.inf if active else 0.0
    if active and active.end:
        running_s = (active.end - now).total_seconds()
    return TaskPace(
        task_s=read_limit_s(run.config), running_s=max(0.0, running_s), waits_s=tuple(measure_waits(snapshot.history))
    )


def _notes(run: RunDir, snapshot: TrainSnapshot) -> list[str]:
    notes = [
        f"array {job.array} is not this train's any more: Slurm has used the id again for {job.name!r} of {job.user}"
        for job in snapshot.strangers
    ]
    notes += [
        f"job {job.full_id} of {user} carries a copy of this train's comment and is ignored"
        for user, job in {job.user: job for job in snapshot.copied}.items()
    ]
    if snapshot.history.pending and not snapshot.adopted:
        notes.append("a submission was cut off and is not in the queue: `opsctl launch` again finalizes it")
    if snapshot.waiting and any(classify_wait(job) is WaitKind.NEVER for job in snapshot.waiting):
        notes.append("something queued will never start: see the reason above")
    if any(is_limit(job) for job in snapshot.waiting):
        notes.append(
            f"opsctl preflight {run.config} says which limits it is beyond by itself, if it is: then change it there,"
            f" opsctl cancel {run.name} and launch it again; else its turn comes when other jobs end"
        )
    if is_pattern_useless(run.main_log, read_step_pattern(run)):
        notes.append("[progress] pattern in TRAIN.toml fits no line of the log: the steps of known formats are shown")
    return notes


def _find_shortage(run: RunDir, snapshot: TrainSnapshot, progress: Progress | None) -> Shortage | None:
    queued = snapshot.waiting_tasks
    needed = progress.left.attempts if progress and progress.left else 0
    if needed <= queued:
        return None
    command = f"opsctl launch {run.config} --after {snapshot.jobs[-1].array} --tasks {needed - queued}"
    return Shortage(needed=needed, queued=queued, command=command)
