"""Checkpoints: none for too long, growing, damaged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal

from opsctl.checkpoints.discovery import Save, find_saves, size_of
from opsctl.errors import OpsctlError
from opsctl.model import Finding, Level
from opsctl.telemetry.progress.eta import median_step_s
from opsctl.telemetry.progress.iteration_lines import recent_iterations
from opsctl.trainer.manifest import read_manifest, verify
from opsctl.units import format_size
from opsctl.watchdogs.context import WatchContext, WatchedTrain

LATE = 3.0
"""So many intervals without a checkpoint are too many, and GRACE_S more for loading and saving."""
GRACE_S = 1800.0
UNKNOWN_S = 12 * 3600.0
"""The limit while nobody knows the interval."""
BLOATED = 1.5
"""So many times the usual size: a save that stores whole buffers instead of views, say."""
REMEMBERED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointObservation:
    """The checkpoints of a train."""

    train: str
    runs_since: datetime | None = None
    newest: Save | None = None
    limit_s: float = UNKNOWN_S
    size: int | None = None
    """Of the newest, in bytes."""
    usual: float | None = None
    """The median of those before it."""
    problems: tuple[str, ...] = ()
    """What is not as it was written in the newest."""
    damaged: tuple[str, ...] = ()
    """What the trainer has set aside."""


class CheckpointAge:
    name: ClassVar[str] = "checkpoint"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = False

    def probe(self, context: WatchContext, target: WatchedTrain) -> CheckpointObservation:
        fields = context.memory.read(self.name, target.name)
        embedded = target.run.trainer_config.exists()
        saves = find_saves(target.run.checkpoints, embedded=embedded)
        job, newest = target.running, saves[-1] if saves else None
        intervals = _intervals(fields, newest, job.start if job else None)
        sizes, problems = dict(fields.get("sizes", {})), tuple(fields.get("problems", ()))
        if (
            newest
            and (embedded or (context.now - newest.at).total_seconds() > GRACE_S / 3)
            and newest.path.name not in sizes
        ):
            sizes[newest.path.name] = size_of(newest.path)[0]
            problems = tuple(find_faults(newest.path)) if embedded else ()
        sizes = dict(list(sizes.items())[-REMEMBERED:])
        at = newest.at.isoformat() if newest else None
        context.memory.write(
            self.name, target.name, {"at": at, "intervals": intervals, "sizes": sizes, "problems": problems}
        )
        earlier = [size for name, size in sizes.items() if newest and name != newest.path.name]
        return CheckpointObservation(
            train=target.name,
            runs_since=job.start if job else None,
            newest=newest,
            limit_s=_limit_s(target, intervals),
            size=sizes.get(newest.path.name) if newest else None,
            usual=median(earlier) if earlier else None,
            problems=problems,
            damaged=_damaged(target.run.checkpoints),
        )

    def judge(self, observation: CheckpointObservation, now: datetime) -> list[Finding]:
        key, newest = f"{self.name}/{observation.train}", observation.newest.path.name if observation.newest else "none"
        level, summary = Level.OK, f"{observation.train}: newest checkpoint: {newest}"
        if observation.runs_since:
            since = max(observation.runs_since, observation.newest.at) if observation.newest else observation.runs_since
            age = max(0.0, (now - since).total_seconds())  # files are dated by another machine's clock
            level = (
                Level.OK
                if age < observation.limit_s
                else Level.WARNING
                if age < 2 * observation.limit_s
                else Level.CRITICAL
            )
            limit = f"limit {observation.limit_s / 3600:.1f} h"
            summary = (
                f"{observation.train}: no new checkpoint for {age / 3600:.1f} h of running ({limit}); newest: {newest}"
            )
        findings = [
            Finding(
                key=key,
                level=level,
                summary=summary,
                train=observation.train,
                remedy=f"opsctl save-switch {observation.train}" if level is not Level.OK else "",
            )
        ]
        if observation.size is not None and observation.usual and observation.size > BLOATED * observation.usual:
            grown = f"{newest} has {format_size(observation.size)}, those before it {format_size(observation.usual)}"
            findings.append(
                Finding(
                    key=f"{key}/size",
                    level=Level.WARNING,
                    summary=f"{observation.train}: {grown}",
                    train=observation.train,
                )
            )
        if wrong_ones := (*observation.problems, *(f"{name} was set aside as damaged" for name in observation.damaged)):
            findings.append(
                Finding(
                    key=f"{key}/verify",
                    level=Level.CRITICAL if observation.problems else Level.WARNING,
                    summary=f"{observation.train}: {wrong_ones[0]}",
                    train=observation.train,
                    evidence=tuple(wrong_ones),
                    remedy=f"opsctl checkpoint verify {observation.train}",
                )
            )
        return findings


def find_faults(checkpoint: Path) -> list[str]:
    """What is wrong and can be seen without reading it all: marker, manifest, each file's size. Raises OSError."""
    if problems := verify(checkpoint, mine=lambda _: False):
        return problems
    try:
        files = read_manifest(checkpoint).files
    except ValueError as error:
        return [str(error)]
    found = []
    for name, record in sorted(files.items()):
        path = checkpoint / name
        size = path.stat().st_size if path.exists() else None
        if size is None:
            found.append(f"{checkpoint.name}: {name} is missing")
        elif size != record.size:
            found.append(f"{checkpoint.name}: {name} has {size} bytes instead of {record.size}")
    return found


def _intervals(fields: dict[str, Any], newest: Save | None, started: datetime | None) -> list[float]:
    """Seconds of running between two checkpoints, the newest last; time spent in the queue is none of it."""
    intervals = [float(each) for each in fields.get("intervals", [])]
    if newest is None or not fields.get("at"):
        return intervals
    before = datetime.fromisoformat(fields["at"])
    began = max(before, started) if started and started < newest.at else before
    seconds = (newest.at - began).total_seconds()
    return [*intervals, seconds][-REMEMBERED:] if newest.at > before and seconds > 0 else intervals


def _limit_s(thing: WatchedTrain, intervals: list[float]) -> float:
    if thing.config.watch.checkpoint_hours:
        return thing.config.watch.checkpoint_hours * 3600
    known = [value for value in (expected_s(thing), median(intervals) if intervals else None) if value]
    return LATE * max(known) + GRACE_S if known else UNKNOWN_S


def expected_s(thing: WatchedTrain) -> float | None:
    """The embedded trainer says how many steps are between two checkpoints, and the log how long a step takes."""
    every = trainer_checkpoint(thing).get("every")
    step_s = median_step_s(recent_iterations(thing.run.main_log, 20)) if every else None
    return every * step_s if every and step_s else None


def trainer_checkpoint(thing: WatchedTrain) -> dict[str, int]:
    """The [checkpoint] table of the embedded trainer as it was frozen; empty for a foreign one."""
    try:
        given = json.loads(thing.run.trainer_config.read_text())["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError, OpsctlError):
        return {}
    return {key: value for key, value in given.items() if isinstance(value, int)}


def _damaged(directory: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in directory.glob("damaged-*")))
