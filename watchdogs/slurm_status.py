"""The queue: whether a task of the train runs or will start; and its rows as lines of the pulse log."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from pydantic import AwareDatetime

from opsctl.base.findings import Finding, Severity
from opsctl.base.model import Job, JobState
from opsctl.base.statements import NO_REMEDY, Remedy, Statement, Value, advise, state, type_now
from opsctl.base.units import format_duration, parse_slurm_minutes
from opsctl.launch.train_arrays import TrainSnapshot
from opsctl.launch.wait_reasons import (
    WaitKind,
    classify_wait,
    explain_wait,
    is_own_hold,
    with_first_start,
    word,
)
from opsctl.settings.bounded_pattern import compile_bounded
from opsctl.settings.watch import WatchSettings
from opsctl.state.files import append_line
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs.context import WatchContext, WatchedTrain
from opsctl.watchdogs.failures import find_hold

CUT_OFF = timedelta(minutes=10)
"""Time for which an interrupted submission counts as unknown."""
MIN_LEARNT_WAIT_S, LEARNT_WAITS = 86_400.0, 3
"""Without `waiting_hours`, a wait is long after this time, and this multiple of the train's longest wait so far."""
MAX_WAITS_REMEMBERED = 50
BEHIND_OTHERS = frozenset({"Priority", "Resources", "JobArrayTaskLimit", "None", ""})
"""Slurm's reasons of a task that waits for its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueObservation:
    """The train's queue rows and the start of the current situation."""

    train: str
    snapshot: TrainSnapshot
    jobs: tuple[Job, ...] = ()
    ended: str = ""
    """Why the train needs no task; empty if the train needs one."""
    is_stopped: bool = False
    """Whether the last attempt ended in a failure after which no task starts: the alert of the failure says so."""
    idle_since: datetime | None = None
    """Start of the time in which tasks wait and none runs."""
    stuck_since: datetime | None = None
    """Start of the time in which every waiting task is blocked by a reason outside the train."""
    waits_s: tuple[float, ...] = ()
    """The train's earlier waits behind other jobs, in seconds."""
    limits: WatchSettings
    config: str = ""
    """The train.toml to launch again."""

    @property
    def waiting_limit(self) -> timedelta:
        """The longest normal wait behind other jobs."""
        if self.limits.waiting_hours is not None:
            return timedelta(hours=self.limits.waiting_hours)
        return timedelta(seconds=max(MIN_LEARNT_WAIT_S, LEARNT_WAITS * max(self.waits_s, default=0.0)))

    @property
    def active(self) -> list[Job]:
        return [job for job in self.jobs if job.state.is_active]

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.state.is_waiting]

    @property
    def kinds(self) -> dict[WaitKind, Job]:
        """The kinds of waiting, with the first row of each kind."""
        history = self.snapshot.history
        return {classify_wait(job, is_ours=is_own_hold(job, history)): job for job in reversed(self.waiting)}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMemory:
    idle: AwareDatetime | None = None
    """Since when tasks wait and none runs."""
    stuck: AwareDatetime | None = None
    """Since when they wait for a reason that time alone does not remove."""
    waits: tuple[float, ...] = ()
    """Seconds of the last waits."""
    pulse: AwareDatetime | None = None
    """When PULSE lines were last written."""
    state: str | None = None
    """The queue rows of that time."""


class SlurmStatus:
    name: ClassVar[str] = "slurm_status"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = True

    def probe(self, context: WatchContext, target: WatchedTrain) -> QueueObservation:
        assert target.snapshot is not None
        rows = [job for job in (*target.snapshot.jobs, *target.also) if not job.state.is_final]
        limit_minutes = parse_slurm_minutes(target.config.slurm.time_limit) or math.inf
        jobs = tuple(with_first_start(job, limit_minutes, context.now) for job in rows)
        hold = find_hold(target.events)
        queue = QueueObservation(
            train=target.name,
            snapshot=target.snapshot,
            jobs=jobs,
            ended=target.why_ended,
            is_stopped=hold is not None and hold.end is None,
            limits=context.site.watch,
            config=str(target.run.config),
        )
        return self._remember(context, target, queue)

    def _remember(self, context: WatchContext, train: WatchedTrain, queue: QueueObservation) -> QueueObservation:
        before = context.memory.recall(QueueMemory, self.name, train.name)
        is_idle = bool(queue.waiting) and not queue.active
        is_stuck = is_idle and set(queue.kinds) <= {WaitKind.BLOCKED, WaitKind.UNKNOWN}
        idle = min(before.idle or context.now, context.now) if is_idle else None
        stuck = min(before.stuck or context.now, context.now) if is_stuck else None
        waits = _add_wait(before, queue, context.now)
        pulsed = self._pulse(context, train, queue, before)
        context.memory.remember(self.name, train.name, replace(pulsed, idle=idle, stuck=stuck, waits=waits))
        return replace(queue, idle_since=idle, stuck_since=stuck, waits_s=waits)

    def _pulse(
        self, context: WatchContext, train: WatchedTrain, queue: QueueObservation, before: QueueMemory
    ) -> QueueMemory:
        """Write PULSE lines after a change or a long time; return what to remember of them."""
        state = " ".join(f"{job.id}:{job.state}:{job.reason}" for job in queue.jobs)
        # abs(): after a tick of a clock that was ahead, the lines must not stop.
        age = abs(context.now - before.pulse) if before.pulse else timedelta.max
        is_due = state != before.state or age >= timedelta(minutes=queue.limits.pulse_minutes)
        if not (context.acts and is_due and train.run.is_ours) or (queue.ended and not queue.jobs):
            return before
        with contextlib.suppress(OSError):  # the watchdog fs_quota reports a full disk
            append_pulse(train.run, list_pulse_lines(train.name, queue.jobs, context.now))
        return replace(before, pulse=context.now, state=state)

    def judge(self, observation: QueueObservation, now: datetime) -> list[Finding]:
        severity, says, fix = _judged(observation, now)
        rows = [
            state("queue.row", array=job.array, state=job.state.value, reason=job.reason) for job in observation.jobs
        ]
        return [
            Finding(
                key=f"{self.name}/{observation.train}",
                severity=severity,
                says=says,
                train=observation.train,
                since=observation.idle_since,
                details=tuple(rows[:10]),
                fix=fix,
            )
        ]


def _add_wait(before: QueueMemory, queue: QueueObservation, now: datetime) -> tuple[float, ...]:
    """Return the train's waits in seconds, with the wait that a running task has just ended."""
    ended = [max(0.0, (now - before.idle).total_seconds())] if before.idle and queue.active else []
    return (*before.waits, *ended)[-MAX_WAITS_REMEMBERED:]


def find_related_jobs(
    config_names: tuple[str, ...], jobs: tuple[Job, ...], owner: str, ours: set[str]
) -> tuple[Job, ...]:
    """Return the jobs of `owner` outside `ours` whose whole name matches one of the patterns."""
    patterns = [compile_bounded(rf"\A(?:{name})\z") for name in config_names]
    return tuple(
        job
        for job in jobs
        if job.user == owner
        and job.id not in ours
        and any(pattern.search(job.name) is not None for pattern in patterns)
    )


_Judgement = tuple[Severity, Statement, Remedy]


def _judged(queue: QueueObservation, now: datetime) -> _Judgement:
    if queue.active:
        return _runs(queue, now)
    if queue.waiting:
        return _waits(queue, now)
    if queue.jobs:
        says = state("queue.unknown_state", train=queue.train, state=queue.jobs[0].state.value)
        return Severity.UNKNOWN, says, type_now(("squeue",))
    return _is_nowhere(queue, now)


def _runs(queue: QueueObservation, now: datetime) -> _Judgement:
    job = queue.active[-1]
    facts = {"train": queue.train, "state": job.state.value.lower(), "nodes": job.nodes or "?"}
    if job.state in {JobState.SUSPENDED, JobState.STOPPED}:
        return Severity.WARNING, state("queue.runs", **facts), type_now(("scontrol", "resume", job.id))
    blocked = timedelta(minutes=queue.limits.blocked_minutes)
    if job.state is JobState.COMPLETING and job.end and now - job.end > blocked:
        age_s = (now - job.end).total_seconds()
        return Severity.WARNING, state("queue.cleans_up", age_s=age_s, **facts), type_now(("opsctl", "nodes"))
    if never := queue.kinds.get(WaitKind.NEVER):
        says = state("queue.runs_last", array=never.array, why=explain_wait(never), **facts)
        return Severity.WARNING, says, type_now(("opsctl", "status", queue.train))
    return Severity.OK, state("queue.runs", **facts), NO_REMEDY


def _waits(queue: QueueObservation, now: datetime) -> _Judgement:
    kinds, status = queue.kinds, type_now(("opsctl", "status", queue.train))
    for bad, severity in (
        (WaitKind.NEVER, Severity.CRITICAL),
        (WaitKind.FAILED, Severity.CRITICAL),
        (WaitKind.ADMIN, Severity.WARNING),
    ):
        if job := kinds.get(bad):
            reason = job.reason or job.state.value
            says = state("queue.waits", train=queue.train, array=job.array, why=explain_wait(job))
            if bad is WaitKind.FAILED:
                says = state("queue.not_started", train=queue.train, array=job.array, reason=reason)
            return Severity.WARNING if WaitKind.FINE in kinds else severity, says, status
    job = next(iter(kinds.values()))
    idle_s = (now - queue.idle_since).total_seconds() if queue.idle_since else None
    facts: dict[str, Value] = {
        "train": queue.train,
        "array": job.array,
        "why": explain_wait(job, is_ours=is_own_hold(job, queue.snapshot.history)) or "waits",
        "age_s": idle_s,
    }
    if WaitKind.HELD in kinds and len(kinds) == 1:
        return Severity.OK, state("queue.waits", **facts), type_now(("opsctl", "release", queue.train))
    exclusive = queue.limits.exclusive_allocation_minutes
    if exclusive is not None and idle_s is not None and idle_s >= exclusive * 60:
        return Severity.CRITICAL, state("queue.exclusive", **facts), status
    starts = min((job.start for job in queue.waiting if job.start), default=None)
    blocked = timedelta(minutes=queue.limits.blocked_minutes)
    if queue.stuck_since and starts is None and now - queue.stuck_since >= blocked:
        severity = Severity.WARNING if WaitKind.BLOCKED in kinds else Severity.UNKNOWN
        facts["age_s"] = (now - queue.stuck_since).total_seconds()
        return severity, state("queue.stuck", **facts), status
    is_behind = any(word(job) in BEHIND_OTHERS for job in queue.waiting)
    limit_s = queue.waiting_limit.total_seconds()
    if is_behind and idle_s is not None and idle_s >= limit_s:
        kind = "queue.long_until" if starts else "queue.long"
        return Severity.WARNING, state(kind, limit_s=limit_s, starts=starts, **facts), status
    return Severity.OK, state("queue.waits", starts=starts, **facts), NO_REMEDY


def _is_nowhere(queue: QueueObservation, now: datetime) -> _Judgement:
    train, launch = queue.train, ("opsctl", "launch", queue.config)
    if queue.ended:
        return Severity.OK, state("queue.over", train=train, why=queue.ended), NO_REMEDY
    if queue.is_stopped:
        return Severity.OK, state("queue.stopped", train=train), NO_REMEDY
    begun = [event.when for event in queue.snapshot.history.pending.values()]
    if begun and now - max(begun) < CUT_OFF:
        return Severity.UNKNOWN, state("queue.cut_off", train=train), type_now(launch)
    relaunch = advise("remedy.relaunch", ("opsctl", "why", train), launch)
    return Severity.CRITICAL, state("queue.missing", train=train), relaunch


def list_pulse_lines(train: str, jobs: Sequence[Job], now: datetime) -> list[str]:
    """Return the PULSE lines of the BigScience chronicles, word for word, so that existing greps find the lines.

    One line per queue row, or one alert line without rows. Times are local, as in other logs.
    """
    texts = [_describe_row(job, now) for job in jobs]
    texts = texts or [f"***ALERT: {train} is not RUNNING or SCHEDULED! Alert someone at Eng WG***"]
    return [f"[{now.astimezone():%Y-%m-%d %H:%M:%S}] PULSE: {text}" for text in texts]


def _describe_row(job: Job, now: datetime) -> str:
    number = f"{job.array}_{_format_tasks(job)}" if job.tasks else job.id
    where = f"({number} on '{job.partition}' partition"
    if job.state.is_active:
        elapsed = _format_elapsed(now - job.start) if job.start else "?"
        return f"{job.name} is running for {elapsed} since {_stamp(job.start)} {where} ({job.nodes})"
    if not job.state.is_waiting:
        return f"{job.name} is unknown - fix me: (at {_stamp(job.start)}) {where}) ({job.state.value})"
    return f"{job.name} is {_describe_wait(job, now)} {where})"


def _format_tasks(job: Job) -> str:
    first, last = job.tasks[0], job.tasks[-1]
    return str(first) if first == last else f"[{first}-{last}%1]"


def _describe_wait(job: Job, now: datetime) -> str:
    if job.start and job.start > now:
        return f"scheduled to start in {format_duration(max(job.start - now, timedelta(0)))} (at {_stamp(job.start)})"
    before = "waiting for the previous"
    if word(job) == "JobArrayTaskLimit":
        return f"{before} Job Array job to finish before scheduling a new one"
    if word(job) == "Dependency":
        return f"{before} job to finish before scheduling a new one using the dependency mechanism"
    return "waiting to be scheduled"


def _format_elapsed(span: timedelta) -> str:
    """Format a duration as Slurm does: `2-15:52:19`, `15:52:19`, `2:19`."""
    minutes, seconds = divmod(int(max(0, span.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _stamp(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%dT%H:%M:%S}" if at else "N/A"


def append_pulse(run: RunDir, lines: Sequence[str]) -> None:
    """Append `lines` to the train's pulse log: in the main log, they would make a hung train look active.

    Raises OSError.
    """
    append_line(run.logs / "pulse.log", "".join(f"{line}\n" for line in lines).encode(errors="replace"))
