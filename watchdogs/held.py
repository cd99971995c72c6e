"""A train that is held or paused, and that everybody has forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from opsctl.model import Finding, Level
from opsctl.state import switches
from opsctl.state.switches import Switch
from opsctl.watchdogs.context import WatchContext, WatchedTrain


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldObservation:
    train: str
    since: datetime | None = None
    """None if nothing is held."""
    why: str = ""
    hours: float


class HeldTrain:
    name: ClassVar[str] = "held"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = True

    def probe(self, scene: WatchContext, thing: WatchedTrain) -> HoldObservation:
        hours = scene.site.watch.held_hours
        assert thing.seen is not None
        waiting = thing.seen.waiting
        if thing.seen.active or not waiting or not all(job.is_held for job in waiting):
            scene.memory.write(self.name, thing.name, {})
            return HoldObservation(train=thing.name, hours=hours)
        since = scene.memory.read(self.name, thing.name).get("since") or scene.now.isoformat()
        scene.memory.write(self.name, thing.name, {"since": since})
        noted, paused = thing.seen.history.held, switches.read(thing.run, Switch.PAUSE)
        known = [event.when for event in (noted,) if event] + [switch.since for switch in (paused,) if switch]
        why = paused.why if paused else str(noted.data["why"]) if noted else "somebody held it by hand"
        return HoldObservation(
            train=thing.name, since=min([*known, datetime.fromisoformat(since)]), why=why, hours=hours
        )

    def judge(self, seen: HoldObservation, now: datetime) -> list[Finding]:
        level, summary = Level.OK, f"{seen.train} is not held"
        if seen.since is not None:
            hours = (now - seen.since).total_seconds() / 3600
            level = Level.OK if hours < seen.hours else Level.WARNING if hours < 2 * seen.hours else Level.CRITICAL
            summary = f"{seen.train} has been held for {hours:.1f} h (limit {seen.hours:g} h): {seen.why}"
        return [
            Finding(
                key=f"{self.name}/{seen.train}", level=level, summary=summary, train=seen.train,
                remedy=f"opsctl release {seen.train}" if level is not Level.OK else "",
            )
        ]  # fmt: skip
