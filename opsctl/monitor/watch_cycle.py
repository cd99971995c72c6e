"""The watch cycle: reconcile the trains, run every watchdog once, alert people of transitions."""

from __future__ import annotations

import contextlib
import logging
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

log = logging.getLogger(__name__)
Unit = tuple[str, str]
"""Names of a watchdog and of its target: a train, a file system or `site`."""


class WatchServices(Protocol):
    """The services that a cycle needs; App provides them."""

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
    """Result of one watch cycle."""

    findings: tuple[Finding, ...]
    reconciled: tuple[ReconciledTrain, ...] = ()
    transitions: tuple[Transition, ...] = ()
    """The transitions of which people are notified."""
    deliveries: tuple[Delivery, ...] = ()
    problems: tuple[str, ...] = ()
    """Failures of the cycle itself."""
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Watch:
    """Watch cycles over the trains of a site. Keep the object between cycles: it remembers which watchdogs hang."""

    services: WatchServices
    names: Sequence[str] = ()
    """Watchdogs; empty for all."""
    trains: Sequence[str] = ()
    """Names of trains; empty for all trains and for the watchdogs of the site and its file systems."""
    acts: bool = True
    """Whether to reconcile, cancel hung tasks, record, alert and ping. False: only run the watchdogs."""
    _isolation: Isolation[Unit, Any] = field(init=False)
    _problems: list[str] = field(default_factory=list)
    _slurm_answers: bool = True
    _is_complete: bool = True
    """Whether every step of the cycle has worked so far."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.names if name not in WATCHDOGS]:
            raise InputError(f"no watchdog {unknown[0]!r}; there are: {', '.join(WATCHDOGS)}")
        self._isolation = Isolation(self.services.clock, self.services.site.watch.timeout_seconds)

    @property
    def watchdogs(self) -> dict[str, Watchdog[WatchContext, Any, Any]]:
        return {name: watchdog for name, watchdog in WATCHDOGS.items() if not self.names or name in self.names}

    def cycle(self) -> CycleReport:
        """Run one cycle. Failures become findings or `problems`; nothing is raised."""
        began, self._problems, self._is_complete = self.services.clock.monotonic(), [], True
        if problem := self.services.alerting.site_problem:
            self._problems.append(f"{problem}: alerts, cron and node history are kept in your own state directory")
        runs = [run for run in all_trains(self.services.site.root_path) if not self.trains or run.name in self.trains]
        jobs, slurm_findings = self._read_queue() if runs else ([], [])
        self._slurm_answers = jobs is not None
        reconciled = self._reconcile(runs, jobs) if self.acts and jobs is not None else []
        context, unreadable = self._collect_context(runs, jobs)
        results = self._isolation.run(dict(self._units(context)))
        self._is_complete = self._is_complete and not any(map(_has_failed, results.values()))
        findings = [*unreadable, *self._collect_findings(results), *slurm_findings]
        transitions: list[Transition] = []
        deliveries: list[Delivery] = []
        if self.acts:
            findings = [self._cancel_hung(context, finding) for finding in findings]
        if self.acts and self._is_alert_owner():
            findings += self._resolve_vanished(context, results, findings)
            transitions, deliveries = self._notify(findings)
        report = CycleReport(
            findings=tuple(findings),
            reconciled=tuple(reconciled),
            transitions=tuple(transitions),
            deliveries=tuple(deliveries),
            problems=tuple(self._problems),
            seconds=self.services.clock.monotonic() - began,
        )
        _log_report(report, trains=len(runs))
        return report

    # --- collect

    def _is_alert_owner(self) -> bool:
        """Return whether this user owns the site's alerts. Other users only reconcile their own trains."""
        path = self.services.alerting.site.path
        try:
            return path.stat().st_uid == os.geteuid()
        except OSError:
            # The directory does not exist yet: a user who can create the directory becomes the owner.
            return not path.parent.exists() or os.access(path.parent, os.W_OK)

    def _read_queue(self) -> tuple[list[Job] | None, list[Finding]]:
        """Return the whole queue and one finding about Slurm; the queue is None if Slurm does not answer."""
        key = "slurm/site"
        try:
            return self.services.scheduler.jobs(), [Finding(key=key, level=Level.OK, summary="Slurm answers")]
        except OpsctlError as error:
            self._is_complete = False
            summary = f"Slurm: {error.message}"
            return None, [Finding(key=key, level=Level.UNKNOWN, summary=summary, remedy="opsctl doctor")]

    def _read_nodes(self, trains: Sequence[WatchedTrain]) -> tuple[Node, ...] | None:
        """Return every node if a watchdog needs nodes and a train runs; None if Slurm does not answer."""
        if "node_health" not in self.watchdogs or not any(train.snapshot and train.snapshot.active for train in trains):
            return ()
        try:
            return tuple(self.services.scheduler.nodes())
        except OpsctlError as error:
            self._problems.append(error.message)
            self._is_complete = False
            return None

    def _reconcile(self, runs: Sequence[RunDir], jobs: Sequence[Job]) -> list[ReconciledTrain]:
        """Reconcile this user's trains, isolated like the watchdogs: a hanging file system must not stop the cycle."""
        chains = [self.services.chain(run) for run in runs if may_act(run)]
        services = self.services
        work = partial(
            reconciling.reconcile_all, chains, services.scheduler, jobs, services.node_care, services.engine_runner
        )
        result = self._isolation.run({("reconcile", "trains"): work})["reconcile", "trains"]
        if isinstance(result, Failed):
            self._problems.append(f"reconciling the trains: {result.why}")
            self._is_complete = False
            return []
        return list(result)

    def _collect_context(
        self, runs: Sequence[RunDir], jobs: Sequence[Job] | None
    ) -> tuple[WatchContext, list[Finding]]:
        """Return the input of the watchdogs, and one finding per unreadable train."""
        results = self._isolation.run({("train", run.name): partial(self._read_train, run, jobs) for run in runs})
        trains: list[WatchedTrain] = []
        unreadable: list[Finding] = []
        for (_, name), result in results.items():
            if isinstance(result, Failed):
                unreadable.append(
                    Finding(
                        key=f"train/{name}",
                        level=Level.WARNING,
                        summary=f"{name} is not watched: {result.why}",
                        train=name,
                        evidence=result.traceback,
                    )
                )
            else:
                trains.append(result)
        context = WatchContext(
            site=self.services.site,
            now=self.services.clock.now(),
            clock=self.services.clock,
            runner=self.services.engine_runner,
            memory=self._open_memory(),
            site_dir=self.services.alerting.site.path,
            trains=tuple(trains),
            nodes=self._read_nodes(trains),
            acts=self.acts,
        )
        return context, unreadable

    def _open_memory(self) -> WatchdogMemory:
        alerting = self.services.alerting
        spare = alerting.spare.path / "watch"
        if not self._is_alert_owner():
            return WatchdogMemory(spare, self._problems)
        return WatchdogMemory(alerting.site.path / "watch", self._problems, spare)

    def _read_train(self, run: RunDir, jobs: Sequence[Job] | None) -> WatchedTrain:
        config = parse(TrainSettings, read_toml(run.config), str(run.config))
        journal = self.services.journal(run)
        if jobs is None:
            return WatchedTrain(run=run, config=config, snapshot=None)
        snapshot = take_snapshot(run, journal, jobs)
        ours = {job.id for job in snapshot.jobs}
        also = find_related_jobs(config.watch.also_jobs, tuple(jobs), user_name(run.path.stat().st_uid), ours)
        return WatchedTrain(run=run, config=config, snapshot=snapshot, also=also, events=tuple(journal.events()))

    def _units(self, context: WatchContext) -> Iterable[tuple[Unit, Callable[[], list[Finding]]]]:
        for watchdog in self.watchdogs.values():
            if watchdog.needs_slurm and not self._slurm_answers:
                continue
            for name, target in self._select_targets(watchdog, context):
                yield (watchdog.name, name), partial(_evaluate, watchdog, context, target)

    def _select_targets(
        self, watchdog: Watchdog[WatchContext, Any, Any], context: WatchContext
    ) -> list[tuple[str, Any]]:
        if watchdog.of == "train":
            return [(train.name, train) for train in context.trains if watchdog.name not in train.config.watch.off]
        if self.trains:
            return []
        if watchdog.of == "site":
            return [("site", None)]
        return [(filesystem.name, filesystem) for filesystem in filesystems(context.site)]

    # --- act

    def _collect_findings(self, results: dict[Unit, Any]) -> list[Finding]:
        findings: list[Finding] = []
        for (name, target), result in results.items():
            if isinstance(result, Failed):
                findings.append(
                    Finding(
                        key=f"{name}/{target}",
                        level=Level.UNKNOWN,
                        train=target if WATCHDOGS[name].of == "train" else "",
                        evidence=result.traceback,
                        summary=f"{name} could not check {target}: {result.why}",
                    )
                )
            else:
                findings += result
        return findings

    def _cancel_hung(self, context: WatchContext, finding: Finding) -> Finding:
        """Cancel a hung task if its train.toml says so; return the finding with the action."""
        train = next((train for train in context.trains if finding.key == f"hang/{train.name}"), None)
        if train is None or finding.level is not Level.CRITICAL:
            return finding
        job, attempt = train.running, train.attempt
        if not train.config.watch.hang_cancels or not may_act(train.run) or not attempt or not job or not job.tasks:
            return finding
        # Written before the task ends: without the reason, finalizing would blame the cancellation on a person.
        with contextlib.suppress(OpsctlError):
            request_stop(train.run, attempt, StopKind.HUNG, finding.summary)
        try:
            name = self.services.chain(train.run).cancel_task(job.tasks[0], finding.summary)
            action = f"opsctl cancelled {name}, so that the next task starts"
        except OpsctlError as error:
            action = f"opsctl could not cancel the task: {error.message}"
        return replace(finding, done=(action,), remedy=f"opsctl status {train.name}")

    def _resolve_vanished(
        self, context: WatchContext, results: dict[Unit, Any], findings: Sequence[Finding]
    ) -> list[Finding]:
        """Return OK findings for open alerts whose subject vanished: a node left by the train, a removed train."""
        try:
            levels = self.services.alerting.ledger.levels()
        except OpsctlError:
            return []
        reported = {finding.key for finding in findings}
        resolved = []
        for key, entry in levels.items():
            if entry.level is Level.OK or key in reported or not self._has_vanished(context, results, key):
                continue
            finding = entry.finding or Finding(key=key, level=Level.OK, summary="")
            resolved.append(replace(finding, level=Level.OK, summary=f"{key} no longer exists", evidence=(), remedy=""))
        return resolved

    def _has_vanished(self, context: WatchContext, results: dict[Unit, Any], key: str) -> bool:
        """Return whether an open alert without a finding in this cycle is resolved.

        `key` is `WATCHDOG/TARGET` or `WATCHDOG/TARGET/PART`. The alert is resolved if the watchdog checked the target
        and no longer reports the part, or if the target is gone or no longer watched. A failed or partial cycle
        resolves nothing.
        """
        name, _, rest = key.partition("/")
        target = rest.partition("/")[0]
        if (name, target) in results:
            return not _is_unknown(results[name, target])
        if self.trains:
            return False
        is_readable = any(train.name == target for train in context.trains)
        is_read_or_removed = is_readable or _is_removed(context.site.root_path / target)
        if name == "train":
            return is_read_or_removed
        if name not in self.watchdogs:
            return False
        watchdog = WATCHDOGS[name]
        if watchdog.needs_slurm and not self._slurm_answers:
            return False
        return watchdog.of != "train" or is_read_or_removed

    def _notify(self, findings: Sequence[Finding]) -> tuple[list[Transition], list[Delivery]]:
        alerting = self.services.alerting
        transitions: list[Transition] = []
        deliveries: list[Delivery] = []
        try:
            transitions = alerting.ledger.record(findings)
            deliveries = dispatch.send_alerts(alerting)
            # A partial cycle must not ping: the dead-man's switch vouches for every watchdog and every train.
            if self._is_complete and not self.names and not self.trains:
                dispatch.ping(alerting)
        except (OpsctlError, OSError) as error:
            self._problems.append(f"alerting: {error}")
        return transitions, deliveries


def filesystems(site: SiteSettings) -> tuple[Filesystem, ...]:
    """Return the file systems that the site names, or else the file system of the trains."""
    return site.filesystem or (Filesystem(name="root", path=str(site.root_path)),)


def _evaluate(watchdog: Watchdog[WatchContext, Any, Any], context: WatchContext, target: object) -> list[Finding]:
    began = context.clock.monotonic()
    findings = list(watchdog.judge(watchdog.probe(context, target), context.now))
    seconds = context.clock.monotonic() - began
    log.debug("watchdog %s: %d findings in %.3f s", watchdog.name, len(findings), seconds)
    for finding in findings:
        log.debug("%s: %s: %s", finding.key, finding.level.value, finding.summary)
    return findings


def _log_report(report: CycleReport, *, trains: int) -> None:
    for transition in report.transitions:
        finding = transition.finding
        log.info("%s: %s -> %s: %s", finding.key, transition.before.value, finding.level.value, finding.summary)
    for delivery in report.deliveries:
        item = delivery.item
        if delivery.error is None:
            log.info("delivered by %s: %s", item.channel, item.message.subject)
            continue
        again = "not tried again" if delivery.error.is_permanent else "tried again later"
        log.warning("not delivered by %s, %s: %s", item.channel, again, delivery.error.message)
    for problem in report.problems:
        log.warning(problem)
    text = "cycle of %d trains: %d findings, %d transitions, %d deliveries in %.2f s"
    log.info(text, trains, len(report.findings), len(report.transitions), len(report.deliveries), report.seconds)


def _has_failed(result: object) -> bool:
    return isinstance(result, Failed)


def _is_unknown(result: list[Finding] | Failed) -> bool:
    return isinstance(result, Failed) or any(finding.level is Level.UNKNOWN for finding in result)


def _is_removed(path: Path) -> bool:
    """Return whether `path` does not exist. An unreadable path counts as existing."""
    try:
        path.lstat()
    except FileNotFoundError:
        return path.parent.is_dir()
    except OSError:
        return False
    return False
