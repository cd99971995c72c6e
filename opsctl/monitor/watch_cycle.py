"""The watch cycle: reconcile the trains, run every watchdog once, alert people of transitions."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from opsctl.alerts.outbox import Delivery
from opsctl.app import App
from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.findings import Finding, Severity, Transition
from opsctl.base.model import Job
from opsctl.base.statements import state, type_now
from opsctl.guard.node_care import NodeCare
from opsctl.guard.stop_request import StopKind, read_stop_request, request_stop
from opsctl.host.isolation import Failed, Isolation
from opsctl.monitor import reconcile as reconciling
from opsctl.monitor.alert_people import AlertPeople
from opsctl.monitor.cycle_report import CycleProblems, CycleReport, log_report
from opsctl.monitor.read_trains import TrainReader, Unit, read_entries
from opsctl.monitor.reconcile import ReconciledTrain
from opsctl.monitor.run_watchdogs import CheckedParts, collect_findings, judge_vanished, list_units
from opsctl.monitor.steady_clock import SteadyClock
from opsctl.state.reasons import Reason, ReasonKind
from opsctl.state.run_dir import RunDir, may_act
from opsctl.watchdogs import WATCHDOGS
from opsctl.watchdogs.context import WatchContext

GUARD_REACTS = timedelta(seconds=60)
"""A guard reads the stop request sooner, as `poll_seconds` says."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """Watch cycles over the trains of a site. Keep the object between cycles: it remembers which watchdogs hang."""

    app: App
    names: Sequence[str] = ()
    """Watchdogs; empty for all."""
    trains: Sequence[str] = ()
    """Names of trains; empty for all trains and for the watchdogs of the site and its file systems."""
    acts: bool = True
    """Whether to reconcile, end hung attempts, record, alert and ping. False: only run the watchdogs."""
    _isolation: Isolation[Unit, Any] = field(init=False)
    people: AlertPeople = field(init=False)

    def __post_init__(self) -> None:
        if unknown := [name for name in self.names if name not in WATCHDOGS]:
            raise InputError(f"no watchdog {unknown[0]!r}; there are: {', '.join(WATCHDOGS)}")
        self._isolation = Isolation(self.app.clock, self.app.site.watch.timeout_seconds)
        vouches = not (self.names or self.trains)
        self.people = AlertPeople(app=self.app, isolation=self._isolation, vouches=vouches)

    def cycle(self) -> CycleReport:
        """Run one cycle. Failures become findings or `problems`; nothing is raised."""
        app, people, problems = self.app, self.people, CycleProblems()
        began, memory = app.clock.monotonic(), people.open_memory(problems)
        if isinstance(app.clock, SteadyClock):
            app.clock.settle(memory)
        ledger = app.alerting.ledger.begin_cycle()
        if self.acts:
            people.begin(problems)
        if problem := app.alerting.site_problem:
            problems.lines.append(f"{problem}: alerts, cron and node history are kept in your own state directory")
        watchdogs = {name: watchdog for name, watchdog in WATCHDOGS.items() if not self.names or name in self.names}
        reader = TrainReader(app=app, isolation=self._isolation, problems=problems, watchdogs=watchdogs, acts=self.acts)
        runs, root_findings = reader.list_runs(self.trains, memory)
        jobs, slurm_findings = reader.read_queue() if runs else ([], [])
        reconciled = self._reconcile(runs, jobs, problems) if self.acts and jobs is not None else []
        context, unreadable = reader.collect(runs, jobs, memory)
        checked = CheckedParts(
            context=context, watchdogs=watchdogs, is_partial=bool(self.trains), slurm_answers=jobs is not None
        )
        results = self._isolation.run(dict(list_units(checked)))
        problems.is_complete &= not any(isinstance(result, Failed) for result in results.values())
        findings = [*unreadable, *collect_findings(results), *slurm_findings, *root_findings]
        transitions: list[Transition] = []
        deliveries: list[Delivery] = []
        if self.acts:
            findings = [self._end_hung(context, finding) for finding in findings]
        if self.acts and people.is_owner:
            findings += judge_vanished(checked, results, read_entries(app.alerting), findings)
            findings += people.apply_answers(runs, problems)
            transitions, deliveries = people.notify(findings, ledger, problems)
            names = [train.name for train in context.trains]
            people.ping(names, findings, problems, seconds=app.clock.monotonic() - began)
        report = CycleReport(
            findings=tuple(findings),
            reconciled=tuple(reconciled),
            transitions=tuple(transitions),
            deliveries=tuple(deliveries),
            problems=tuple(problems.lines),
            seconds=app.clock.monotonic() - began,
        )
        log_report(report, trains=len(runs))
        return report

    def _reconcile(self, runs: Sequence[RunDir], jobs: Sequence[Job], problems: CycleProblems) -> list[ReconciledTrain]:
        """Reconcile this user's trains, isolated like the watchdogs: a hanging file system must not stop the cycle."""
        app = self.app
        all_arrays = [app.arrays(run) for run in runs if may_act(run)]
        reconciled, failures = reconciling.reconcile_all(
            all_arrays,
            app.slurm,
            jobs,
            self._isolation,
            care=NodeCare.of(app),
            runner=app.engine_runner,
        )
        for failure in failures:
            problems.fail(failure)
        return reconciled

    def _end_hung(self, context: WatchContext, finding: Finding) -> Finding:
        """Have a hung attempt ended if its train.toml says so; return the finding with the action.

        The guard ends the ranks and keeps the nodes. A task whose guard has not done so by a later cycle is cancelled.
        """
        train = next((train for train in context.trains if finding.key == f"hang/{train.name}"), None)
        if train is None or finding.severity is not Severity.CRITICAL:
            return finding
        job, attempt = train.running, train.attempt
        if not train.config.watch.hang_cancels or not may_act(train.run) or not attempt or not job or not job.tasks:
            return finding
        now = self.app.clock.now()
        # Written before the ranks end: without the reason, finalizing would blame a person for the end.
        with contextlib.suppress(OpsctlError):
            if request_stop(train.run, attempt, StopKind.HUNG, finding.summary, at=now):
                action = state("site.ends_hung", attempt=attempt.name)
                return replace(finding, actions=(action,), fix=type_now(("opsctl", "status", train.name)))
        request = read_stop_request(attempt)
        if request and request.at and abs(now - request.at) < GUARD_REACTS:
            return finding
        reason = Reason(kind=ReasonKind.HUNG, attempt=attempt.name, text=finding.summary)
        try:
            name = self.app.arrays(train.run).cancel_task(job.tasks[0], reason)
            action = state("site.cancelled", job=name)
        except OpsctlError as error:
            action = state("site.not_cancelled", problem=error.message)
        return replace(finding, actions=(action,), fix=type_now(("opsctl", "status", train.name)))
