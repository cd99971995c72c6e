"""Checkpoints that are late, grow, or are damaged, and attempts that do not advance the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import ClassVar, Literal

from pydantic import AwareDatetime

from opsctl.base.findings import Finding, Severity
from opsctl.base.statements import NO_REMEDY, advise, quote, state, type_now
from opsctl.checkpoints.scan import Save, size_of
from opsctl.launch.switch_readers import UnansweredSave, find_unanswered_save
from opsctl.state.events import RESTARTS, AttemptFinalized, RollbackUndone, RolledBack
from opsctl.state.records import date_by_first_sight, load_record
from opsctl.telemetry.progress.iteration_lines import recent_iterations
from opsctl.telemetry.progress.run_progress import predict_next_save
from opsctl.telemetry.progress.signs import find_train_saves
from opsctl.telemetry.progress.step_pace import median_step_s
from opsctl.telemetry.progress.train_settings import read_checkpoint_table
from opsctl.trainer.manifest import verify
from opsctl.watchdogs.context import WatchContext, WatchedTrain
from opsctl.watchdogs.failures import find_hold

LATE_INTERVALS = 3.0
"""A checkpoint is late after this many intervals plus GRACE_S, which covers loading and saving."""
GRACE_S = 1800.0
UNKNOWN_S = 12 * 3600.0
"""The limit while the interval is unknown."""
LARGE_SIZE_RATIO = 1.5
"""Ratio to the usual size that gives a warning: such as a save of whole buffers instead of views."""
REMEMBERED = 20
REQUESTED_ENDS = frozenset(
    {"stopped", "restarted", "cancelled", "paused", "finished", "killed", "refused", "node-refused", "skipped"}
)
"""Outcomes that say nothing about progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """The progress of one ended attempt, from its end.json."""

    attempt: str
    outcome: str
    resume_step: int | None
    highest_step: int | None
    new_checkpoint: bool
    counts_anew: bool = False
    resumed_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointObservation:
    train: str
    is_running: bool = False
    running_s: float = 0.0
    """Running time since the newest checkpoint, all attempts together."""
    standing: tuple[EndedAttempt, ...] = ()
    """The attempts that did not advance the step; empty if the train advances."""
    newest: Save | None = None
    unanswered: UnansweredSave | None = None
    """An armed save switch."""
    lack: str = "none"
    """What was found instead of a checkpoint."""
    limit_s: float = UNKNOWN_S
    size: int | None = None
    """Size of the newest checkpoint, in bytes."""
    usual: float | None = None
    """Median size of the previous checkpoints, in bytes."""
    problems: tuple[str, ...] = ()
    """Differences between the newest checkpoint and its manifest."""
    damaged: tuple[str, ...] = ()
    """Names of the checkpoints that the trainer renamed as damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavesMemory:
    at: AwareDatetime | None = None
    """Time of the newest checkpoint."""
    sight: tuple[str, ...] = ()
    """Its stamp from the future, and when it was first read."""
    intervals: tuple[float, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by name, the newest last."""
    problems: tuple[str, ...] = ()


class CheckpointAge:
    name: ClassVar[str] = "checkpoint"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: WatchedTrain) -> CheckpointObservation:
        before = context.memory.recall(SavesMemory, self.name, target.name)
        embedded = target.run.trainer_config.exists()
        saves = find_train_saves(target.run, target.config)
        job, newest = target.running, saves[-1] if saves else None
        sight: tuple[str, ...] = ()
        if newest:
            at, sight = date_by_first_sight(newest.at, context.now, before.sight)
            newest = replace(newest, at=at)
        intervals = _intervals(before, newest, job.start if job else None)
        sizes, problems = dict(before.sizes), before.problems
        if (
            newest
            and (embedded or (context.now - newest.at).total_seconds() > GRACE_S / 3)
            and newest.path.name not in sizes
        ):
            sizes[newest.path.name] = size_of(newest.path)[0]
            problems = tuple(verify(newest.path, hashes=False)) if embedded else ()
        sizes = dict(list(sizes.items())[-REMEMBERED:])
        newest_at = newest.at if newest else None
        remembered = SavesMemory(at=newest_at, sight=sight, intervals=intervals, sizes=sizes, problems=problems)
        context.memory.remember(self.name, target.name, remembered)
        earlier = [size for name, size in sizes.items() if newest and name != newest.path.name]
        return CheckpointObservation(
            train=target.name,
            is_running=job is not None,
            running_s=0.0 if target.is_over else measure_running_s(target, _find_begin(target, newest), context.now),
            standing=_find_standing(target),
            newest=newest,
            unanswered=find_unanswered_save(target.run, job.start if job else None, context.now),
            lack=("" if newest or embedded else predict_next_save(target.run, 0, None).found_instead) or "none",
            limit_s=_limit_s(target, intervals),
            size=sizes.get(newest.path.name) if newest else None,
            usual=median(earlier) if earlier else None,
            problems=problems,
            damaged=tuple(sorted(path.name for path in target.run.checkpoints.glob("damaged-*"))),
        )

    def judge(self, observation: CheckpointObservation, now: datetime) -> list[Finding]:
        train, newest = observation.train, observation.newest.path.name if observation.newest else observation.lack
        key = f"{self.name}/{train}"
        severity, says = Severity.OK, state("checkpoint.newest", train=train, newest=newest)
        if observation.is_running or observation.running_s:
            times = {"age_s": observation.running_s, "limit_s": observation.limit_s}
            severity = judge_age(**times)
            says = state("checkpoint.age", train=train, newest=newest, **times)
        fix = advise("remedy.save", ("opsctl", "save-switch", train)) if severity is not Severity.OK else NO_REMEDY
        findings = [Finding(key=key, severity=severity, says=says, train=train, fix=fix)]
        if observation.standing:
            findings.append(_judge_standstill(observation.standing, key, train))
        if (save := observation.unanswered) and save.is_overdue:
            says = state("checkpoint.unanswered", save.why, train=train, age_s=save.age_s)
            disarm = type_now(("opsctl", "save-switch", train, "--disarm"))
            findings.append(Finding(key=f"{key}/switch", severity=Severity.WARNING, says=says, train=train, fix=disarm))
        size, usual = observation.size, observation.usual
        if size is not None and usual and size > LARGE_SIZE_RATIO * usual:
            sizes = {"more_percent": 100 * (size / usual - 1), "size_bytes": size, "usual_bytes": usual}
            grown = state("checkpoint.grown", train=train, newest=newest, **sizes)
            findings.append(Finding(key=f"{key}/size", severity=Severity.WARNING, says=grown, train=train))
        faults = [quote(problem) for problem in observation.problems]
        faults += [state("checkpoint.renamed", name=name) for name in observation.damaged]
        if faults:
            findings.append(
                Finding(
                    key=f"{key}/verify",
                    severity=Severity.CRITICAL if observation.problems else Severity.WARNING,
                    says=state("checkpoint.faulty", faults[0], train=train),
                    train=train,
                    details=tuple(faults),
                    fix=type_now(("opsctl", "checkpoint", "verify", train)),
                )
            )
        return findings


def _find_begin(train: WatchedTrain, newest: Save | None) -> datetime | None:
    """Return the time from which on a checkpoint is due: the newest one, or a rollback to an older one."""
    times = [event.when for event in train.events if isinstance(event, RolledBack | RollbackUndone)]
    return max([*times, *([newest.at] if newest else [])], default=None)


def _find_standing(train: WatchedTrain) -> tuple[EndedAttempt, ...]:
    """Return the attempts that did not advance the train; none while its hold after a failure reports the cause."""
    if find_hold(train.events):
        return ()
    count = train.config.watch.stalled_attempts
    attempts = read_ended_attempts(train, count)
    return tuple(attempts) if not train.is_over and is_standstill(attempts, count) else ()


def _judge_standstill(attempts: Sequence[EndedAttempt], key: str, train: str) -> Finding:
    start = max(attempt.resume_step or 0 for attempt in attempts)
    return Finding(
        key=f"{key}/step",
        severity=Severity.CRITICAL,
        says=state("checkpoint.standstill", train=train, attempts=len(attempts), step=start),
        train=train,
        since_step=start + 1,
        details=tuple(
            state("checkpoint.reached", attempt=attempt.attempt, step=attempt.highest_step) for attempt in attempts
        ),
        fix=advise("remedy.after_standstill", ("opsctl", "edit", train, "TRAIN.toml"), ("opsctl", "why", train)),
    )


def judge_age(age_s: float, limit_s: float) -> Severity:
    """Return WARNING from the limit on, CRITICAL from twice the limit on."""
    if age_s < limit_s:
        return Severity.OK
    return Severity.WARNING if age_s < 2 * limit_s else Severity.CRITICAL


def _intervals(before: SavesMemory, newest: Save | None, started: datetime | None) -> tuple[float, ...]:
    """Return the seconds of running time between checkpoints, the newest last. Queue time does not count."""
    if newest is None or before.at is None:
        return before.intervals
    began = max(before.at, started) if started and started < newest.at else before.at
    seconds = (newest.at - began).total_seconds()
    is_new = newest.at > before.at and seconds > 0
    return (*before.intervals, seconds)[-REMEMBERED:] if is_new else before.intervals


def _limit_s(train: WatchedTrain, intervals: Sequence[float]) -> float:
    if train.config.watch.checkpoint_hours:
        return train.config.watch.checkpoint_hours * 3600
    known = [value for value in (expected_s(train), median(intervals) if intervals else None) if value]
    return LATE_INTERVALS * max(known) + GRACE_S if known else UNKNOWN_S


def expected_s(train: WatchedTrain) -> float | None:
    """Return the expected seconds between checkpoints, from the embedded trainer's setting and the log's step time."""
    every = read_checkpoint_table(train.run).get("every")
    step_s = median_step_s(recent_iterations(train.run.main_log, 20)) if every else None
    return every * step_s if every and step_s else None


def measure_running_s(train: WatchedTrain, since: datetime | None, now: datetime) -> float:
    """Return the seconds for which tasks of the train ran since `since`, all attempts together.

    An attempt whose end is unknown, and that does not run, counts until the start of the next one at most, otherwise
    not at all.
    """
    if train.snapshot is None:
        return 0.0
    history, job = train.snapshot.history, train.running
    spans: dict[str, tuple[datetime, datetime]] = {}
    started = list(history.started.items())
    for (name, start), (_, next_start) in pairwise([*started, ("", now)]):
        ended = history.finalized.get(name)
        end = ended.when if ended else next_start
        if ended or (name, start) != started[-1]:
            spans[name] = (start, min(end, now))
    if job and job.start:
        attempt = history.newest_attempt(job.full_id)
        spans[attempt] = (history.started.get(attempt, job.start), now)
    return sum(max(0.0, (end - max(start, since or start)).total_seconds()) for start, end in spans.values())


def read_ended_attempts(train: WatchedTrain, count: int) -> list[EndedAttempt]:
    """Return the progress of the last `count` attempts since a person last restarted the train, the newest last.

    Without those whose end says nothing.
    """
    ended: list[EndedAttempt] = []
    names = list(train.snapshot.history.started) if train.snapshot else []
    since = max((event.number for event in train.events if isinstance(event, RESTARTS)), default=0)
    early = {event.attempt for event in train.events if isinstance(event, AttemptFinalized) and event.number < since}
    for name in reversed([name for name in names if name not in early]):
        if len(ended) == count:
            break
        attempt = load_record(EndedAttempt, train.run.attempt(name).end)
        if attempt and attempt.outcome not in REQUESTED_ENDS:
            ended.append(attempt)
    return ended[::-1]


def is_standstill(attempts: Sequence[EndedAttempt], count: int) -> bool:
    """Return whether `count` attempts all went on from the same step, and none left a checkpoint.

    The steps of trainers that count anew show nothing, and neither do they where the named checkpoint changes.
    """
    starts = [attempt.resume_step for attempt in attempts if attempt.resume_step is not None]
    if len(attempts) < count or len(starts) < 2 or any(attempt.new_checkpoint for attempt in attempts):
        return False
    named = {attempt.resumed_from for attempt in attempts if attempt.resumed_from}
    if len(named) > 1 or any(attempt.counts_anew for attempt in attempts):
        return False
    return max(starts) <= starts[0]
