"""The watch cycle: attend to the trains, look at everything once, tell people what has changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from opsctl.alerts import dispatch
from opsctl.alerts.dispatch import Alerting
from opsctl.alerts.outbox import Delivery
from opsctl.errors import InputError, OpsctlError
from opsctl.guard.node_care import NodeCare
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.host.isolation import Failed, Isolation
from opsctl.host.system import user_name
from opsctl.launch.train_arrays import TrainArrays, take_snapshot
from opsctl.model import Finding, Job, Level, Node, Transition
from opsctl.monitor import reconcile as reconciling
from opsctl.monitor.reconcile import ReconciledTrain
from opsctl.ports import Clock, Runner, Scheduler, Watchdog
from opsctl.settings.loader import SiteSettings, TrainSettings, parse, read_toml
from opsctl.settings.watch import Filesystem
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir, all_trains, may_act
from opsctl.watchdogs import WATCHDOGS
from opsctl.watchdogs.context import WatchContext, WatchdogMemory, WatchedTrain
from opsctl.watchdogs.slurm_status import find_related_jobs

Unit = tuple[str, str]
"""A watchdog and the name of what it looks at."""


class WatchServices(Protocol):
    """What a cycle needs; the App has it all."""

    @property
    def site(self) -> SiteSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def engine_runner(self) -> Runner: ...
    @property
    def scheduler(self) -> Scheduler: ...
    @property
    def alerting(self) -> Alerting: ...
    @property
    def node_care(self) -> NodeCare: ...
    def chain(self, run: RunDir) -> TrainArrays: ...
    def journal(self, run: RunDir) -> Journal: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """What a cycle found and did."""

    findings: tuple[Finding, ...]
    reconciled: tuple[ReconciledTrain, ...] = ()
    transitions: tuple[Transition, ...] = ()
    """What people are told."""
    attempts: tuple[Delivery, ...] = ()
    problems: tuple[str, ...] = ()
    """What of the cycle itself went wrong."""
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Watch:
    """Cycles over the trains of a site. Keep it between cycles: it remembers which watchdogs hang."""

    world: WatchServices
    names: Sequence[str] = ()
    """Watchdogs; empty for all."""
    trains: Sequence[str] = ()
    """Names of trains; empty for all, and for what belongs to no train."""
    acts: bool = True
    """Whether to act: attend to the trains, cancel what hangs, record, alert, ping. If not, it is only a look."""
    _isolation: Isolation[Unit, Any] = field(init=False)
    _problems: list[str] = field(default_factory=list)
    _slurm_answers: bool = True
    _is_whole: bool = True
    """Whether all that was to be done was done, so far."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.names if name not in WATCHDOGS]:
            raise InputError(f"no watchdog {unknown[0]!r}; there are: {', '.join(WATCHDOGS)}")
        self._isolation = Isolation(self.world.clock, self.world.site.watch.timeout_seconds)

    @property
    def watchdogs(self) -> dict[str, Watchdog[WatchContext, Any, Any]]:
        return {name: watchdog for name, watchdog in WATCHDOGS.items() if not self.names or name in self.names}

    def cycle(self) -> CycleReport:
        """One cycle. Whatever fails in it is told by its findings or among its problems: it does not raise."""
        began, self._problems, self._is_whole = self.world.clock.monotonic(), [], True
        runs = [run for run in all_trains(self.world.site.root_path) if not self.trains or run.name in self.trains]
        jobs, slurm = self._jobs() if runs else ([], [])
        self._slurm_answers = jobs is not None
        reconciled = self._attend(runs, jobs) if self.acts and jobs is not None else []
        context, broken = self._scene(runs, jobs)
        answers = self._isolation.run(dict(self._units(context)))
        self._is_whole = self._is_whole and not any(map(_has_failed, answers.values()))
        findings = [*broken, *self._findings(answers), *slurm]
        transitions: list[Transition] = []
        attempts: list[Delivery] = []
        if self.acts:
            findings = [self._acted(context, finding) for finding in findings]
        if self.acts and self._is_ours():
            findings += self._gone(context, answers, findings)
            transitions, attempts = self._tell(findings)
        return CycleReport(
            findings=tuple(findings), reconciled=tuple(reconciled), transitions=tuple(transitions),
            attempts=tuple(attempts), problems=tuple(self._problems), seconds=self.world.clock.monotonic() - began,
        )  # fmt: skip

    # --- what there is

    def _is_ours(self) -> bool:
        """Whoever keeps the site's alerts is the one that tells people; others look after their own trains."""
        path = self.world.alerting.site.path
        try:
            return path.stat().st_uid == os.geteuid()
        except OSError:
            return not path.parent.exists() or os.access(path.parent, os.W_OK)  # whoever may make it

    def _jobs(self) -> tuple[list[Job] | None, list[Finding]]:
        """The whole queue, and whether Slurm answers: one finding for it, and none of every train."""
        key = "slurm/site"
        try:
            return self.world.scheduler.jobs(), [Finding(key=key, level=Level.OK, summary="Slurm answers")]
        except OpsctlError as error:
            text, self._is_whole = f"Slurm: {error.message}", False
            return None, [Finding(key=key, level=Level.UNKNOWN, summary=text, remedy="opsctl doctor")]

    def _nodes(self, trains: Sequence[WatchedTrain]) -> tuple[Node, ...] | None:
        """Asked only where somebody wants to know, and where Slurm has just answered."""
        if "node_health" not in self.watchdogs or not any(train.seen and train.seen.active for train in trains):
            return ()
        try:
            return tuple(self.world.scheduler.nodes())
        except OpsctlError as error:
            self._problems.append(error.message)
            self._is_whole = False
            return None

    def _attend(self, runs: Sequence[RunDir], jobs: Sequence[Job]) -> list[ReconciledTrain]:
        """Settle, note switches, carry out requests; as isolated as all else, for it reads the same files."""
        mine = [self.world.chain(run) for run in runs if may_act(run)]
        work = partial(reconciling.reconcile_all, mine, self.world.scheduler, jobs, self.world.node_care)
        answer = self._isolation.run({("attend", "trains"): work})["attend", "trains"]
        if isinstance(answer, Failed):
            self._problems.append(f"reconciling to the trains: {answer.why}")
            self._is_whole = False
            return []
        return list(answer)

    def _scene(self, runs: Sequence[RunDir], jobs: Sequence[Job] | None) -> tuple[WatchContext, list[Finding]]:
        """Everything that is looked at, and findings on trains that cannot be read."""
        read = self._isolation.run({("train", run.name): partial(self._watched, run, jobs) for run in runs})
        trains = tuple(each for each in read.values() if isinstance(each, WatchedTrain))
        broken = [
            Finding(key=f"train/{name}", level=Level.WARNING, summary=f"{name} is not watched: {each.why}",
                         train=name, evidence=each.traceback)
            for (_, name), each in read.items()
            if isinstance(each, Failed)
        ]  # fmt: skip
        alerting = self.world.alerting
        places = (alerting.site.path, alerting.spare.path) if self._is_ours() else (alerting.spare.path,)
        memory = WatchdogMemory(places[0] / "watch", self._problems, *(path / "watch" for path in places[1:]))
        context = WatchContext(
            site=self.world.site, now=self.world.clock.now(), clock=self.world.clock, runner=self.world.engine_runner,
            memory=memory, site_dir=alerting.site.path, trains=trains,
            nodes=self._nodes(trains), acts=self.acts,
        )  # fmt: skip
        return context, broken

    def _watched(self, run: RunDir, jobs: Sequence[Job] | None) -> WatchedTrain:
        config = parse(TrainSettings, read_toml(run.config), str(run.config))
        journal = self.world.journal(run)
        if jobs is None:
            return WatchedTrain(run=run, config=config, seen=None)
        snapshot = take_snapshot(run, journal, jobs)
        ours = {job.id for job in snapshot.jobs}
        also = find_related_jobs(config.watch.also_jobs, tuple(jobs), user_name(run.path.stat().st_uid), ours)
        return WatchedTrain(run=run, config=config, seen=snapshot, also=also, events=tuple(journal.events()))

    def _units(self, context: WatchContext) -> Iterable[tuple[Unit, Callable[[], list[Finding]]]]:
        generator = (each for each in self.watchdogs.values() if self._slurm_answers or not each.needs_slurm)
        for watchdog in generator:
            for name, thing in self._things(watchdog, context):
                yield (watchdog.name, name), partial(_look, watchdog, context, thing)

    def _things(self, watchdog: Watchdog[WatchContext, Any, Any], context: WatchContext) -> list[tuple[str, Any]]:
        if watchdog.of == "train":
            return [(train.name, train) for train in context.trains if watchdog.name not in train.config.watch.off]
        if self.trains:
            return []
        if watchdog.of == "site":
            return [("site", None)]
        return [(filesystem.name, filesystem) for filesystem in filesystems(context.site)]

    # --- what follows

    def _findings(self, answers: dict[Unit, Any]) -> list[Finding]:
        findings: list[Finding] = []
        for (name, thing), answer in answers.items():
            if isinstance(answer, Failed):
                train = thing if WATCHDOGS[name].of == "train" else ""
                findings.append(
                    Finding(
                        key=f"{name}/{thing}", level=Level.UNKNOWN, train=train, evidence=answer.traceback,
                        summary=f"{name} could not look at {thing}: {answer.why}",
                    )
                )  # fmt: skip
            else:
                findings += answer
        return findings

    def _acted(self, context: WatchContext, finding: Finding) -> Finding:
        """Cancel a task that hangs, where its train's config says so; the finding, with what was done."""
        train = next(
            (watched_train for watched_train in context.trains if finding.key == f"hang/{watched_train.name}"), None
        )
        if train is None or finding.level is not Level.CRITICAL:
            return finding
        job, attempt = train.running, train.attempt
        if not train.config.watch.hang_cancels or not may_act(train.run) or not attempt or not job or not job.tasks:
            return finding
        # Before it ends, or its finalization would take it for one that somebody cancelled.
        with contextlib.suppress(OpsctlError):
            request_stop(train.run, attempt, StopKind.HUNG, finding.summary)
        try:
            name = self.world.chain(train.run).cancel_task(job.tasks[0], finding.summary)
            did = f"opsctl cancelled {name}, so that the next task starts"
        except OpsctlError as error:
            did = f"opsctl could not cancel it: {error.message}"
        return replace(finding, done=(did,), remedy=f"opsctl status {train.name}")

    def _gone(self, context: WatchContext, answers: dict[Unit, Any], findings: Sequence[Finding]) -> list[Finding]:
        """What was not well and is not there any more: a node that the train left, a train that was removed."""
        try:
            levels = self.world.alerting.ledger.levels()
        except OpsctlError:
            return []
        told = {each.key for each in findings}
        gone = []
        for key, entry in levels.items():
            if entry.level is not Level.OK and key not in told and self._is_over(context, answers, key):
                finding = entry.finding or Finding(key=key, level=Level.OK, summary="")
                gone.append(
                    replace(finding, level=Level.OK, summary=f"{key} is not there any more", evidence=(), remedy="")
                )
        return gone

    def _is_over(self, context: WatchContext, answers: dict[Unit, Any], key: str) -> bool:
        """We have looked there and nobody says it any more, or what it was about is gone or not watched now."""
        name, _, rest = key.partition("/")
        thing = rest.partition("/")[0]
        if (name, thing) in answers:
            return not _is_unknown(answers[name, thing])
        if self.trains or (name != "train" and name not in self.watchdogs):
            return False
        is_known = thing in {train.name for train in context.trains} or _is_gone(context.site.root_path / thing)
        if name == "train":
            return is_known
        watchdog = WATCHDOGS[name]
        return (self._slurm_answers or not watchdog.needs_slurm) and (watchdog.of != "train" or is_known)

    def _tell(self, findings: Sequence[Finding]) -> tuple[list[Transition], list[Delivery]]:
        alerting = self.world.alerting
        transitions: list[Transition] = []
        attempts: list[Delivery] = []
        try:
            transitions = alerting.ledger.record(findings)
            attempts = dispatch.send_alerts(alerting)
            # Only after a whole cycle of everything: a dead man's switch that is pressed by half of us is none.
            if self._is_whole and not self.names and not self.trains:
                dispatch.ping(alerting)
        except (OpsctlError, OSError) as error:
            self._problems.append(f"alerting: {error}")
        return transitions, attempts


def filesystems(site: SiteSettings) -> tuple[Filesystem, ...]:
    """Those that the site names; if it names none, the one that the trains are on."""
    return site.filesystem or (Filesystem(name="root", path=str(site.root_path)),)


def _look(watchdog: Watchdog[WatchContext, Any, Any], context: WatchContext, thing: object) -> list[Finding]:
    return watchdog.judge(watchdog.probe(context, thing), context.now)


def _has_failed(answer: object) -> bool:
    return isinstance(answer, Failed)


def _is_unknown(answer: list[Finding] | Failed) -> bool:
    return isinstance(answer, Failed) or any(finding.level is Level.UNKNOWN for finding in answer)


def _is_gone(path: Path) -> bool:
    """It is not there. That it cannot be looked at is not the same."""
    try:
        path.lstat()
    except FileNotFoundError:
        return path.parent.is_dir()
    except OSError:
        return False
    return False
