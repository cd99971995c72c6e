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

    def probe(self, context: WatchContext, target: WatchedTrain) -> HoldObservation:
        hours = context.site.watch.held_hours
        assert target.snapshot is not None
        waiting = target.snapshot.waiting
        if target.snapshot.active or not waiting or not all(job.is_held for job in waiting):
            context.memory.write(self.name, target.name, {})
            return HoldObservation(train=target.name, hours=hours)
        since = context.memory.read(self.name, target.name).get("since") or context.now.isoformat()
        context.memory.write(self.name, target.name, {"since": since})
        noted, paused = target.snapshot.history.held, switches.read(target.run, Switch.PAUSE)
        known = [event.when for event in (noted,) if event] + [switch.since for switch in (paused,) if switch]
        why = paused.why if paused else str(noted.data["why"]) if noted else "somebody held it by hand"
        return HoldObservation(
            train=target.name, since=min([*known, datetime.fromisoformat(since)]), why=why, hours=hours
        )

    def judge(self, observation: HoldObservation, now: datetime) -> list[Finding]:
        level, summary = Level.OK, f"{observation.train} is not held"
        if observation.since is not None:
            hours = (now - observation.since).total_seconds() / 3600
            level = (
                Level.OK
                if hours < observation.hours
                else Level.WARNING
                if hours < 2 * observation.hours
                else Level.CRITICAL
            )
            summary = (
                f"{observation.train} has been held for {hours:.1f} h (limit {observation.hours:g} h):"
                f" {observation.why}"
            )
        return [
            Finding(
                key=f"{self.name}/{observation.train}",
                level=level,
                summary=summary,
                train=observation.train,
                remedy=f"opsctl release {observation.train}" if level is not Level.OK else "",
            )
        ]
