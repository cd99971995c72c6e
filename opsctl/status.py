"""What a train is doing now, from one look at the queue and the files of its run directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.journal import Journal
from opsctl.launch.chain import Seen, look
from opsctl.launch.reasons import Wait, wait, why, word
from opsctl.model import Job
from opsctl.progress.eta import median_step_s, seconds_left
from opsctl.progress.logline import Iteration, recent_iterations
from opsctl.rundir import RunDir
from opsctl.switches import Armed, Request, armed
from opsctl.switches import requests as waiting_requests
from trainer.contract import Heartbeat, read_heartbeat

RECENT = 50
"""Iteration lines that the usual time of a step is taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Queued tasks of one array that wait for the same reason."""

    array: str
    tasks: int
    reason: str
    why: str
    start: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    job: str
    state: str
    nodes: str
    since: datetime | None
    ends: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    step: int
    last_step: int | None
    loss: float | None
    step_s: float | None
    """The median of the latest."""
    tflops: float | None
    phase: str
    at: datetime | None
    """When the trainer last said so, by its own clock."""
    checkpoint_step: int | None
    eta_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLife:
    life: str
    outcome: str
    action: str
    why: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """All that `opsctl status` says of one train."""

    train: str
    state: str
    """running, held, queued, ended, finished, or unknown."""
    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    progress: Progress | None
    last_life: LastLife | None
    switches: tuple[Armed, ...]
    requests: tuple[Request, ...]
    notes: tuple[str, ...]
    """What somebody should look at."""


def status(run: RunDir, journal: Journal, jobs: Sequence[Job], now: datetime) -> Status:
    """The status of `run`, given the whole queue."""
    seen = look(run, journal, jobs)
    last = _last_life(seen)
    return Status(
        train=run.name,
        state=_state(seen, last),
        running=tuple(_running(job) for job in seen.active),
        waiting=tuple(_waiting(job) for job in seen.waiting),
        progress=_progress(run, now),
        last_life=last,
        switches=tuple(armed(run)),
        requests=tuple(waiting_requests(run)),
        notes=tuple(_notes(seen)),
    )


def _state(seen: Seen, last: LastLife | None) -> str:
    if seen.active:
        return "running"
    if seen.waiting:
        return "held" if all(job.is_held for job in seen.waiting) else "queued"
    if last and last.outcome == "finished":
        return "finished"
    unsettled = set(seen.history.started) - set(seen.history.settled)
    return "unknown" if seen.history.pending or unsettled else "ended"


def _running(job: Job) -> Running:
    name = f"{job.array}_{job.tasks[0]}" if job.tasks else job.id
    return Running(job=name, state=job.state.value, nodes=job.nodes, since=job.start, ends=job.end)


def _waiting(job: Job) -> Waiting:
    return Waiting(array=job.array, tasks=len(job.tasks) or 1, reason=word(job), why=why(job), start=job.start)


def _last_life(seen: Seen) -> LastLife | None:
    if not seen.history.settled:
        return None
    event = list(seen.history.settled.values())[-1]
    texts = {key: str(event.data[key]) for key in ("life", "outcome", "action", "why")}
    return LastLife(at=event.when, **texts)


def _progress(run: RunDir, now: datetime) -> Progress | None:
    """From the heartbeat where there is one, and from the last iteration lines of a Megatron-style log."""
    beat = read_heartbeat(run.heartbeat / "train.json")
    recent = recent_iterations(run.main_log, RECENT)
    if beat is None and not recent:
        return None
    line = recent[-1] if recent else Iteration(step=0)
    step = _step(beat, line)
    last_step = (beat and beat.last_steps) or line.last
    step_s = median_step_s(recent) or (beat.step_s if beat else None)
    return Progress(
        step=step,
        last_step=last_step,
        loss=line.loss if line.loss is not None else (beat.loss if beat else None),
        step_s=step_s,
        tflops=line.tflops,
        phase=beat.phase.value if beat else "",
        at=datetime.fromtimestamp(beat.at, now.tzinfo) if beat else None,
        checkpoint_step=beat.checkpoint_step if beat else None,
        eta_s=seconds_left(step, last_step, step_s),
    )


def _step(beat: Heartbeat | None, line: Iteration) -> int:
    """The later of the two: log lines come at intervals, and a trainer that starts does not know its step yet."""
    return max(beat.step if beat else 0, line.step)


def _notes(seen: Seen) -> list[str]:
    notes = [
        f"array {job.array} is not this train's any more: Slurm has used the id again for {job.name!r} of {job.user}"
        for job in seen.strangers
    ]
    if seen.history.pending and not seen.adopted:
        notes.append("a submission was cut off and is not in the queue: `opsctl launch` again settles it")
    if seen.waiting and any(wait(job) is Wait.NEVER for job in seen.waiting):
        notes.append("something queued will never start: see the reason above")
    return notes
