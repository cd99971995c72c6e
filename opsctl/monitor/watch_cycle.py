"""The watch cycle: reconcile the trains, run every watchdog once, alert people of transitions."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from opsctl.alerts import dispatch
from opsctl.alerts.channels.heartbeat_url import PingKind
from opsctl.alerts.dispatch import Alerting
from opsctl.alerts.ledger import AlertLedger
from opsctl.alerts.ledger_state import LedgerEntry
from opsctl.alerts.outbox import FLUSH_BUDGET_S, Delivery
from opsctl.alerts.senders import Senders
from opsctl.alerts.transitions import SITE_SLURM
from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.findings import Finding, Level, Transition
from opsctl.base.model import Job, Node
from opsctl.base.ports import Clock, Runner, Watchdog
from opsctl.base.statements import state, type_now
from opsctl.guard.node_care import NodeCare
from opsctl.guard.stop_request import StopKind, request_stop
from opsctl.host.isolation import Failed, Isolation
from opsctl.host.system import user_name
from opsctl.launch.train_arrays import TrainArrays, take_snapshot
from opsctl.monitor import reconcile as reconciling
from opsctl.monitor.cycle_report import CycleReport, log_deliveries, log_report
from opsctl.monitor.handle_answers import AnswerPoller
from opsctl.monitor.heartbeat_pings import describe_cycle, list_train_pings
from opsctl.monitor.maintenance import read_maintenance
from opsctl.monitor.reconcile import ReconciledTrain
from opsctl.monitor.run_watchdog import run_watchdog
from opsctl.monitor.steady_clock import SteadyClock
from opsctl.monitor.vanished import CheckedParts, is_node_alert, judge_vanished
from opsctl.settings.loader import SiteSettings, TrainSettings, parse, read_toml
from opsctl.settings.watch import Filesystem
from opsctl.slurm.commands import Slurm
from opsctl.state.journal import Journal
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.run_dir import RunDir, all_trains, may_act
from opsctl.watchdogs import WATCHDOGS
from opsctl.watchdogs.context import WatchContext, WatchdogMemory, WatchedTrain
from opsctl.watchdogs.slurm_status import find_related_jobs

log = logging.getLogger(__name__)
SEND_WAIT_S = 5.0
"""A cycle waits this long for its channels. Slower channels continue while the next cycle runs."""
FINISH_WAIT_S = FLUSH_BUDGET_S + 20
"""A process that ends after one cycle waits this long for slow channels."""
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
    def slurm(self) -> Slurm: ...
    @property
    def alerting(self) -> Alerting: ...
    @property
    def node_care(self) -> NodeCare: ...
    def chain(self, run: RunDir) -> TrainArrays: ...
    def journal(self, run: RunDir) -> Journal: ...


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
    _senders: Senders = field(init=False)
    _answers: AnswerPoller = field(default_factory=AnswerPoller)
    _problems: list[str] = field(default_factory=list)
    _slurm_answers: bool = True
    _is_complete: bool = True
    """Whether every step of the cycle has worked so far."""

    def __post_init__(self) -> None:
        if unknown := [name for name in self.names if name not in WATCHDOGS]:
            raise InputError(f"no watchdog {unknown[0]!r}; there are: {', '.join(WATCHDOGS)}")
        self._isolation = Isolation(self.services.clock, self.services.site.watch.timeout_seconds)
        self._senders = Senders(self.services.clock)

    @property
    def watchdogs(self) -> dict[str, Watchdog[WatchContext, Any, Any]]:
        return {name: watchdog for name, watchdog in WATCHDOGS.items() if not self.names or name in self.names}

    def cycle(self) -> CycleReport:
        """Run one cycle. Failures become findings or `problems`; nothing is raised."""
        began, self._problems, self._is_complete = self.services.clock.monotonic(), [], True
        if isinstance(clock := self.services.clock, SteadyClock):
            clock.settle(self._open_memory())
        ledger = self.services.alerting.ledger.begin_cycle()
        self._start_answers()
        self._ping(PingKind.START)
        if problem := self.services.alerting.site_problem:
            self._problems.append(f"{problem}: alerts, cron and node history are kept in your own state directory")
        runs = self._list_runs()
        jobs, slurm_findings = self._read_queue() if runs else ([], [])
        self._slurm_answers = jobs is not None
        reconciled = self._reconcile(runs, jobs) if self.acts and jobs is not None else []
        context, unreadable = self._collect_context(runs, jobs)
        results = self._isolation.run(dict(self._units(context)))
        self._is_complete = self._is_complete and not any(isinstance(result, Failed) for result in results.values())
        findings = [*unreadable, *self._collect_findings(results), *slurm_findings]
        transitions: list[Transition] = []
        deliveries: list[Delivery] = []
        if self.acts:
            findings = [self._cancel_hung(context, finding) for finding in findings]
        if self.acts and self._is_alert_owner():
            findings += self._judge_vanished(context, results, findings)
            self._apply_answers(runs)
            transitions, deliveries = self._notify(findings, ledger)
            seconds = self.services.clock.monotonic() - began
            self._ping_all([train.name for train in context.trains], findings, seconds)
        report = CycleReport(
            findings=tuple(findings),
            reconciled=tuple(reconciled),
            transitions=tuple(transitions),
            deliveries=tuple(deliveries),
            problems=tuple(self._problems),
            seconds=self.services.clock.monotonic() - began,
        )
        log_report(report, trains=len(runs))
        return report

    def finish_sending(self) -> Collection[str]:
        """Wait for the channels that still send, a bounded time; return those that do not answer."""
        running = self._senders.wait(FINISH_WAIT_S)
        try:
            log_deliveries(self._senders.collect())
        except (OpsctlError, OSError) as error:
            log.warning("alerting: %s", error)
        return running

    # --- collect

    def _is_alert_owner(self) -> bool:
        """Return whether this user owns the site's alerts. Other users only reconcile their own trains."""
        path = self.services.alerting.site.path
        try:
            return path.stat().st_uid == os.geteuid()
        except OSError:
            # The directory does not exist yet: a user who can create the directory becomes the owner.
            return not path.parent.exists() or os.access(path.parent, os.W_OK)

    def _list_runs(self) -> list[RunDir]:
        """Return the selected trains; none if only watchdogs of the site are asked."""
        if not self.acts and all(watchdog.of == "site" for watchdog in self.watchdogs.values()):
            return []
        return [run for run in all_trains(self.services.site.root_path) if not self.trains or run.name in self.trains]

    def _read_queue(self) -> tuple[list[Job] | None, list[Finding]]:
        """Return the whole queue and one finding about Slurm; the queue is None if Slurm does not answer.

        Nothing is found if only watchdogs are asked that need no Slurm.
        """
        is_needed = self.acts or any(watchdog.needs_slurm for watchdog in self.watchdogs.values())
        found = Finding(key=SITE_SLURM, level=Level.OK, says=state("site.slurm_answers"))
        jobs: list[Job] | None = None
        try:
            jobs = self.services.slurm.jobs()
        except OpsctlError as error:
            self._is_complete = False
            says = state("site.slurm_silent", problem=error.message)
            found = replace(found, level=Level.UNKNOWN, says=says, fix=type_now(("opsctl", "doctor")))
        return jobs, [found] if is_needed else []

    def _read_nodes(self, trains: Sequence[WatchedTrain]) -> tuple[Node, ...] | None:
        """Return every node if a train runs or a node's alert is open; None if Slurm does not answer."""
        is_running = any(train.snapshot and train.snapshot.active for train in trains)
        if "node_health" not in self.watchdogs or not (is_running or self._has_node_alert()):
            return ()
        try:
            return tuple(self.services.slurm.nodes())
        except OpsctlError as error:
            self._problems.append(error.message)
            self._is_complete = False
            return None

    def _has_node_alert(self) -> bool:
        entries = self._read_levels() if self._slurm_answers else {}
        return any(entry.level is not Level.OK and is_node_alert(key) for key, entry in entries.items())

    def _reconcile(self, runs: Sequence[RunDir], jobs: Sequence[Job]) -> list[ReconciledTrain]:
        """Reconcile this user's trains, isolated like the watchdogs: a hanging file system must not stop the cycle."""
        chains = [self.services.chain(run) for run in runs if may_act(run)]
        services = self.services
        work = partial(
            reconciling.reconcile_all, chains, services.slurm, jobs, services.node_care, services.engine_runner
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
        is_needed = self.acts or any(watchdog.of == "train" for watchdog in self.watchdogs.values())
        for (_, name), result in results.items():
            if isinstance(result, Failed) and not is_needed:
                continue
            if isinstance(result, Failed):
                unreadable.append(
                    Finding(
                        key=f"train/{name}",
                        level=Level.WARNING,
                        says=state("site.not_watched", train=name, why=result.why),
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
                yield (watchdog.name, name), partial(run_watchdog, watchdog, context, target)

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
                        says=state("site.could_not_check", watchdog=name, target=target, why=result.why),
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
        reason = Reason(kind=ReasonKind.HUNG, attempt=attempt.name, text=finding.summary)
        try:
            name = self.services.chain(train.run).cancel_task(job.tasks[0], reason)
            action = state("site.cancelled", job=name)
        except OpsctlError as error:
            action = state("site.not_cancelled", problem=error.message)
        return replace(finding, actions=(action,), fix=type_now(("opsctl", "status", train.name)))

    def _judge_vanished(
        self, context: WatchContext, results: dict[Unit, Any], findings: Sequence[Finding]
    ) -> list[Finding]:
        """Return findings for the open alerts whose subject vanished."""
        checked = CheckedParts(
            context=context,
            results=results,
            watchdogs=self.watchdogs,
            is_partial=bool(self.trains),
            slurm_answers=self._slurm_answers,
        )
        return judge_vanished(checked, self._read_levels(), findings)

    def _read_levels(self) -> dict[str, LedgerEntry]:
        """Return the entries of the alert ledger; none if the ledger cannot be read."""
        try:
            return self.services.alerting.ledger.levels()
        except OpsctlError:
            return {}

    def _notify(self, findings: Sequence[Finding], ledger: AlertLedger) -> tuple[list[Transition], list[Delivery]]:
        alerting = self.services.alerting
        transitions: list[Transition] = []
        deliveries: list[Delivery] = []
        try:
            muted = frozenset[str]()
            if alerting.rules.maintenance_reservations:
                muted = read_maintenance(self.services.slurm, findings, self.services.clock.now(), self._problems)
            transitions = replace(ledger, muted=muted).record(findings)
            deliveries = dispatch.send_alerts(alerting, self._senders, wait_s=SEND_WAIT_S)
        except (OpsctlError, OSError) as error:
            self._problems.append(f"alerting: {error}")
            self._is_complete = False
        return transitions, deliveries

    def _start_answers(self) -> None:
        if self.acts and self._is_alert_owner():
            with contextlib.suppress(OpsctlError):  # an unreadable ledger is reported by `_notify`
                self._answers.start(self.services.alerting)

    def _apply_answers(self, runs: Sequence[RunDir]) -> None:
        def find_chain(train: str) -> TrainArrays:
            run = next((run for run in runs if run.name == train), None)
            if run is None:
                raise InputError(f"no train {train!r}")
            return self.services.chain(run)

        lines, problems = self._answers.apply(self.services.alerting, find_chain)
        self._problems += problems
        for line in lines:
            log.info("answer: %s", line)

    def _ping(self, kind: PingKind, text: str = "") -> None:
        """Ping the site's dead-man's switch, which vouches for every watchdog and train; not in a partial cycle."""
        if not self.acts or self.names or self.trains or not self._is_alert_owner():
            return
        try:
            dispatch.ping(self.services.alerting, kind, text)
        except (OpsctlError, OSError) as error:
            self._problems.append(f"alerting: {error}")

    def _ping_all(self, trains: Iterable[str], findings: Sequence[Finding], seconds: float) -> None:
        kind = PingKind.SUCCESS if self._is_complete else PingKind.FAIL
        self._ping(kind, describe_cycle(findings, self._problems, seconds))
        if self.acts and self._is_alert_owner():
            pings = list_train_pings(self.services.alerting, trains, findings)
            results = self._isolation.run({("ping", train): send for train, send in pings})
            self._problems += [f"alerting: {result.why}" for result in results.values() if isinstance(result, Failed)]


def filesystems(site: SiteSettings) -> tuple[Filesystem, ...]:
    """Return the file systems that the site names, or else the file system of the trains."""
    return site.filesystem or (Filesystem(name="root", path=str(site.root_path)),)
