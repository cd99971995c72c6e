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

    def probe(self, scene: WatchContext, thing: WatchedTrain) -> CheckpointObservation:
        kept = scene.memory.read(self.name, thing.name)
        embedded = thing.run.trainer_config.exists()
        found = find_saves(thing.run.checkpoints, embedded=embedded)
        job, newest = thing.running, found[-1] if found else None
        intervals = _intervals(kept, newest, job.start if job else None)
        sizes, problems = dict(kept.get("sizes", {})), tuple(kept.get("problems", ()))
        if (
            newest
            and (embedded or (scene.now - newest.at).total_seconds() > GRACE_S / 3)
            and newest.path.name not in sizes
        ):
            sizes[newest.path.name] = size_of(newest.path)[0]
            problems = tuple(find_faults(newest.path)) if embedded else ()
        sizes = dict(list(sizes.items())[-REMEMBERED:])
        at = newest.at.isoformat() if newest else None
        scene.memory.write(
            self.name, thing.name, {"at": at, "intervals": intervals, "sizes": sizes, "problems": problems}
        )
        earlier = [size for name, size in sizes.items() if newest and name != newest.path.name]
        return CheckpointObservation(
            train=thing.name, runs_since=job.start if job else None, newest=newest,
            limit_s=_limit_s(thing, intervals), size=sizes.get(newest.path.name) if newest else None,
            usual=median(earlier) if earlier else None, problems=problems, damaged=_damaged(thing.run.checkpoints),
        )  # fmt: skip

    def judge(self, seen: CheckpointObservation, now: datetime) -> list[Finding]:
        key, newest = f"{self.name}/{seen.train}", seen.newest.path.name if seen.newest else "none"
        level, summary = Level.OK, f"{seen.train}: newest checkpoint: {newest}"
        if seen.runs_since:
            since = max(seen.runs_since, seen.newest.at) if seen.newest else seen.runs_since
            age = max(0.0, (now - since).total_seconds())  # files are dated by another machine's clock
            level = Level.OK if age < seen.limit_s else Level.WARNING if age < 2 * seen.limit_s else Level.CRITICAL
            limit = f"limit {seen.limit_s / 3600:.1f} h"
            summary = f"{seen.train}: no new checkpoint for {age / 3600:.1f} h of running ({limit}); newest: {newest}"
        found = [Finding(key=key, level=level, summary=summary, train=seen.train,
                         remedy=f"opsctl save-switch {seen.train}" if level is not Level.OK else "")]  # fmt: skip
        if seen.size is not None and seen.usual and seen.size > BLOATED * seen.usual:
            grown = f"{newest} has {format_size(seen.size)}, those before it {format_size(seen.usual)}"
            found.append(
                Finding(key=f"{key}/size", level=Level.WARNING, summary=f"{seen.train}: {grown}", train=seen.train)
            )
        if wrong_ones := (*seen.problems, *(f"{name} was set aside as damaged" for name in seen.damaged)):
            found.append(
                Finding(
                    key=f"{key}/verify", level=Level.CRITICAL if seen.problems else Level.WARNING,
                    summary=f"{seen.train}: {wrong_ones[0]}", train=seen.train, evidence=tuple(wrong_ones),
                    remedy=f"opsctl checkpoint verify {seen.train}",
                )
            )  # fmt: skip
        return found


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


def _intervals(kept: dict[str, Any], newest: Save | None, started: datetime | None) -> list[float]:
    """Seconds of running between two checkpoints, the newest last; time spent in the queue is none of it."""
    intervals = [float(each) for each in kept.get("intervals", [])]
    if newest is None or not kept.get("at"):
        return intervals
    before = datetime.fromisoformat(kept["at"])
    began = max(before, started) if started and started < newest.at else before
    seconds = (newest.at - began).total_seconds()
    return [*intervals, seconds][-REMEMBERED:] if newest.at > before and seconds > 0 else intervals


def _limit_s(thing: WatchedTrain, intervals: list[float]) -> float:
    if thing.config.watch.checkpoint_hours:
        return thing.config.watch.checkpoint_hours * 3600
    known = [each for each in (expected_s(thing), median(intervals) if intervals else None) if each]
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
