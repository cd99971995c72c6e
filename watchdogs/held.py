"""A train that stays held or paused for too long."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import AwareDatetime

from opsctl.base.findings import Finding, Severity
from opsctl.base.statements import NO_REMEDY, state, type_now
from opsctl.state import switches
from opsctl.state.switches import Switch
from opsctl.watchdogs.checkpoint import judge_age
from opsctl.watchdogs.context import WatchContext, WatchedTrain


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldObservation:
    train: str
    since: datetime | None = None
    """None if nothing is held."""
    why: str = ""
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldMemory:
    since: AwareDatetime | None = None
    """Since when all waiting tasks have been seen held; None if they are not."""


class HeldTrain:
    name: ClassVar[str] = "held"
    of: ClassVar[Literal["train"]] = "train"
    needs_slurm: ClassVar[bool] = True

    def probe(self, context: WatchContext, target: WatchedTrain) -> HoldObservation:
        hours = context.site.watch.held_hours
        assert target.snapshot is not None
        waiting = target.snapshot.waiting
        if target.snapshot.active or not waiting or not all(job.is_held for job in waiting):
            context.memory.remember(self.name, target.name, HoldMemory())
            return HoldObservation(train=target.name, hours=hours)
        stored = context.memory.recall(HoldMemory, self.name, target.name).since
        since = min(stored or context.now, context.now)
        context.memory.remember(self.name, target.name, HoldMemory(since=since))
        held, paused = target.snapshot.history.held, switches.read(target.run, Switch.PAUSE)
        times = [since]
        why = "held by hand"
        if held:
            times.append(held.when)
            why = str(held.reason)
        if paused:
            times.append(paused.since)
            why = paused.why
        return HoldObservation(train=target.name, since=min(times), why=why, hours=hours)

    def judge(self, observation: HoldObservation, now: datetime) -> list[Finding]:
        train = observation.train
        severity, says = Severity.OK, state("held.no", train=train)
        if observation.since is not None:
            age_s = (now - observation.since).total_seconds()
            severity = judge_age(age_s, observation.hours * 3600)
            says = state("held.yes", train=train, age_s=age_s, limit_h=observation.hours, why=observation.why)
        return [
            Finding(
                key=f"{self.name}/{train}",
                severity=severity,
                says=says,
                train=train,
                since=observation.since,
                fix=type_now(("opsctl", "release", train)) if severity is not Severity.OK else NO_REMEDY,
            )
        ]
