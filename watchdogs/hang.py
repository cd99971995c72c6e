"""A run that does nothing while Slurm says RUNNING.

Signs of attempt are the heartbeat, with the limit of its phase, and the iteration lines and checkpoints, with the run's
own rhythm, which is learnt. Never the age of the log: a run that hangs may well go on talking.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any, ClassVar, Literal

from opsctl.checkpoints.discovery import find_saves
from opsctl.model import Finding, Job, Level
from opsctl.state.run_dir import Attempt
from opsctl.telemetry.progress.iteration_lines import Iteration
from opsctl.trainer.contract import Heartbeat, Phase, read_heartbeat
from opsctl.units import format_duration
from opsctl.watchdogs import hang_stacks
from opsctl.watchdogs.context import WatchContext, WatchedTrain
from opsctl.watchdogs.new_lines import new_iterations

FLOOR_S = 900.0
"""A rhythm that was learnt never makes the limit shorter than this."""
LINES, GAPS = 20, 3
"""The limit: as long as so many lines take, and so many times the longest pause that ended well."""
REMEMBERED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """What a train's log and checkpoints tell, and what is kept of it."""

    attempt: str = ""
    step: int = 0
    saved: float = 0.0
    since: datetime
    """The last sign of life, by the watcher's clock."""
    checked_at: datetime
    is_starting: bool = True
    """Nothing was seen of this attempt yet."""
    pauses: tuple[float, ...] = ()
    line_s: float | None = None

    @property
    def limit_s(self) -> float:
        return max(FLOOR_S, LINES * (self.line_s or 0), GAPS * max(self.pauses, default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietObservation:
    """How long it has been quiet, and how long it may be."""

    train: str
    attempt: str = ""
    """Empty if nothing runs."""
    phase: str = ""
    step: int = 0
    since: datetime | None = None
    limit_s: float = 0.0
    tolerance_s: float = 0.0
    evidence: tuple[str, ...] = ()

    def is_hang(self, now: datetime) -> bool:
        return self.since is not None and now - self.since > timedelta(seconds=self.limit_s + self.tolerance_s)


class Hang:
    name: ClassVar[str] = "hang"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = True

    def probe(self, context: WatchContext, target: WatchedTrain) -> QuietObservation:
        job, attempt, fields = target.running, target.attempt, context.memory.read(self.name, target.name)
        if job is None or attempt is None:
            context.memory.write(self.name, target.name, {**fields, "attempt": ""})
            return QuietObservation(train=target.name)
        lines, position = new_iterations(target.run.main_log, fields)
        rhythm = learn(_recall(fields), target, job, attempt, lines, now=context.now)
        quiet = _quiet(context, target, rhythm, read_heartbeat(target.run.heartbeat / "train.json"))
        data = fields.get("evidence", {})
        if quiet.is_hang(context.now):
            data = self._evidence(context, target, quiet, data)
            quiet = replace(quiet, evidence=tuple(data.get("lines", ())))
        context.memory.write(self.name, target.name, {**position, **_kept(rhythm), "evidence": data})
        return quiet

    def _evidence(
        self, context: WatchContext, thing: WatchedTrain, quiet: QuietObservation, fields: dict[str, Any]
    ) -> dict[str, Any]:
        """Stacks are asked for once for each time that it fell silent, and before anybody acts."""
        since = f"{quiet.attempt} {quiet.since}"
        job, attempt, watch = thing.running, thing.attempt, thing.config.watch
        if fields.get("since") == since or not context.acts or not thing.run.is_ours or attempt is None or job is None:
            return fields
        target = attempt.path / "evidence" / f"hang-{context.now:%Y%m%dT%H%M%S}"
        ranks, lines = thing.config.world_size, []
        try:
            hang_stacks.request_by_file(attempt, target, ranks=ranks, seconds=watch.stacks_seconds, clock=context.clock)
            problems = hang_stacks.py_spy(watch.py_spy, job, attempt, target, context.runner) if watch.py_spy else ()
            lines = [*hang_stacks.summary(target, ranks=ranks), *problems]
        except OSError as error:
            lines.append(f"stacks could not be kept: {error}")
        return {"since": since, "lines": lines}

    def judge(self, observation: QuietObservation, now: datetime) -> list[Finding]:
        level, summary, remedy = Level.OK, f"{observation.train}: nothing runs", ""
        if observation.since is not None:
            age, limit = (
                format_duration(now - observation.since),
                f"(limit {format_duration(timedelta(seconds=observation.limit_s))})",
            )
            summary = (
                f"{observation.train}: {observation.phase}, step {observation.step}, last sign of life {age}"
                f" ago {limit}"
            )
            if observation.is_hang(now):
                level = Level.CRITICAL
                summary = (
                    f"{observation.attempt} hangs: {observation.phase}, step {observation.step}, no sign of"
                    f" life for {age} {limit}"
                )
                task = f"{observation.train}_{observation.attempt.rpartition('.')[0].rpartition('_')[2]}"
                remedy = f"opsctl stacks {observation.train}; opsctl cancel {task}"
        return [
            Finding(
                key=f"{self.name}/{observation.train}",
                level=level,
                summary=summary,
                train=observation.train,
                evidence=observation.evidence,
                remedy=remedy,
            )
        ]


def learn(
    before: Rhythm | None, thing: WatchedTrain, job: Job, attempt: Attempt, lines: list[Iteration], *, now: datetime
) -> Rhythm:
    """The rhythm after this look."""
    saved = _newest_save(thing)
    step = lines[-1].step if lines else before.step if before else 0
    line_s = _line_s(lines) or (before.line_s if before else None)
    pauses = before.pauses if before else ()
    if before is None or before.attempt != attempt.name:
        # These lines may still be the last attempt's, so nothing is taken for a sign of life but the job's start.
        since = max(filter(None, (job.start, _spoken(thing, now))), default=now)
        return Rhythm(
            attempt=attempt.name,
            step=step,
            saved=saved,
            since=min(since, now),
            checked_at=now,
            pauses=pauses,
            line_s=line_s,
        )
    if (step, saved) == (before.step, before.saved) and not lines:
        return replace(before, checked_at=now)
    if not before.is_starting:
        # Only what was seen to be a pause: nobody may have looked for hours.
        pause = (before.checked_at - before.since).total_seconds()
        pauses = (*pauses, pause)[-REMEMBERED:] if pause > 0 else pauses
    return Rhythm(
        attempt=attempt.name,
        step=step,
        saved=saved,
        since=now,
        checked_at=now,
        is_starting=False,
        pauses=pauses,
        line_s=line_s,
    )


def _spoken(thing: WatchedTrain, now: datetime) -> datetime | None:
    """When the log was last written: on a first look, no sign of life can be later."""
    try:
        return min(now, datetime.fromtimestamp(thing.run.main_log.stat().st_mtime, UTC))
    except OSError:
        return None


def _newest_save(thing: WatchedTrain) -> float:
    """When a checkpoint was last written to, also one that is being written."""
    try:
        saves = find_saves(thing.run.checkpoints, embedded=False)
    except OSError:
        return 0.0
    return saves[-1].at.timestamp() if saves else 0.0


def _line_s(lines: list[Iteration]) -> float | None:
    """Seconds between two lines, as the lines themselves say."""
    known = [(b.step - a.step) * b.step_s for a, b in pairwise(lines) if b.step_s and b.step > a.step]
    return median(known) if known else None


def _quiet(context: WatchContext, thing: WatchedTrain, rhythm: Rhythm, heartbeat: Heartbeat | None) -> QuietObservation:
    """The later of the two signs of life: heartbeats end where their disk is full, lines where nobody prints any."""
    watch = thing.config.watch
    limit_s = watch.init_minutes * 60 if rhythm.is_starting else rhythm.limit_s
    quiet = QuietObservation(
        train=thing.name,
        attempt=rhythm.attempt,
        phase="starting" if rhythm.is_starting else "training",
        step=rhythm.step,
        since=rhythm.since,
        limit_s=limit_s,
        tolerance_s=context.site.watch.clock_tolerance_seconds,
    )
    if heartbeat and heartbeat.attempt == rhythm.attempt:
        limit_s, at = heartbeat.limit_s, datetime.fromtimestamp(heartbeat.at, UTC)
        quiet = replace(
            quiet, phase=heartbeat.phase.value, step=max(heartbeat.step, rhythm.step), limit_s=heartbeat.limit_s
        )
        quiet = replace(quiet, since=at if rhythm.is_starting else max(at, rhythm.since))
    # What is said by hand is meant for steps: starting, saving and evaluating have limits of their own.
    if watch.hang_minutes and quiet.phase in {"training", Phase.TRAIN}:
        quiet = replace(quiet, limit_s=watch.hang_minutes * 60)
    return quiet


def _recall(fields: dict[str, Any]) -> Rhythm | None:
    try:
        given = fields["rhythm"]
        times = {key: datetime.fromisoformat(given[key]) for key in ("since", "checked_at")}
        return Rhythm(**{**given, **times, "pauses": tuple(given["pauses"]), "attempt": fields["attempt"]})
    except (KeyError, TypeError, ValueError):
        return None


def _kept(rhythm: Rhythm) -> dict[str, Any]:
    fields = {
        "step": rhythm.step,
        "saved": rhythm.saved,
        "since": rhythm.since.isoformat(),
        "checked_at": rhythm.checked_at.isoformat(),
        "is_starting": rhythm.is_starting,
        "pauses": rhythm.pauses,
        "line_s": rhythm.line_s,
    }
    return {"attempt": rhythm.attempt, "rhythm": fields}
