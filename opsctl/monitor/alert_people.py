"""The last step of a watch cycle, for the owner of the site's alerts: answers of people, alerts, pings."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any

from opsctl.alerts import dispatch
from opsctl.alerts.answer import RawAnswer
from opsctl.alerts.channels.heartbeat_url import PingKind
from opsctl.alerts.dispatch import Alerting
from opsctl.alerts.ledger import AlertLedger
from opsctl.alerts.outbox import FLUSH_BUDGET_S, Delivery
from opsctl.alerts.senders import Senders
from opsctl.alerts.transitions import SITE_ANSWERS
from opsctl.app import App
from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.findings import Finding, Severity, Transition
from opsctl.base.model import Reservation
from opsctl.base.nodesets import expand, union
from opsctl.base.statements import state
from opsctl.guard.node_care import NodeCare
from opsctl.host.isolation import Failed, Isolation
from opsctl.launch.train_arrays import TrainArrays
from opsctl.monitor.apply_answers import FindChain, apply_answers
from opsctl.monitor.cycle_report import CycleProblems, log_deliveries
from opsctl.monitor.read_trains import Unit, drop_usual, has_listed, read_entries
from opsctl.settings.alert_channels import AppriseTable, EmailTable, NtfyTable, SlackTable
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs.context import WatchdogMemory

log = logging.getLogger(__name__)
SEND_WAIT_S = 5.0
"""A cycle waits this long for its channels. Slower channels continue while the next cycle runs."""
FINISH_WAIT_S = FLUSH_BUDGET_S + 20
"""A process that ends after one cycle waits this long for slow channels."""
WAIT_S = 3.0
"""A cycle waits this long for the answers of each channel. Later answers wait for the next cycle."""
READ_AFTER_END = timedelta(hours=12)
"""Threads are read for so long after their last message, also if the alert is over."""


@dataclass(slots=True)
class AnswerPoller:
    """Reads answers in threads: a channel that hangs does not delay the cycle. Keep the object between cycles."""

    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _results: SimpleQueue[list[RawAnswer] | str] = field(default_factory=SimpleQueue)
    """Answers, or the failure, of each read."""

    def start(self, alerting: Alerting) -> None:
        """Start to read the answers of every channel that has any, unless an earlier read still hangs."""
        if not alerting.rules.people:
            return
        for channel, read in _list_polls(alerting):
            if channel in self._threads and self._threads[channel].is_alive():
                self._results.put(f"answers of {channel}: the channel has not answered since the last watch cycle")
                continue
            thread = threading.Thread(target=self._work, args=(read,), daemon=True, name=f"answers of {channel}")
            self._threads[channel] = thread
            thread.start()

    def apply(
        self, alerting: Alerting, find_chain: FindChain, care: NodeCare | None = None
    ) -> tuple[list[str], list[str]]:
        """Do what the answers so far ask for; return sentences on what was done, and the failures."""
        for thread in list(self._threads.values()):
            thread.join(WAIT_S)
        answers: list[RawAnswer] = []
        problems: list[str] = []
        while not self._results.empty():
            result = self._results.get()
            if isinstance(result, str):
                problems.append(result)
            else:
                answers += result
        try:
            return apply_answers(alerting, answers, find_chain, care), problems
        except (OpsctlError, OSError) as error:
            return [], [*problems, f"answers: {error}"]

    def _work(self, read: Callable[[], Iterator[RawAnswer]]) -> None:
        answers: list[RawAnswer] = []
        try:
            answers.extend(read())  # those before an error count
        except Exception as error:  # noqa: BLE001 (reported; answers must not stop the watch)
            self._results.put(error.message if isinstance(error, OpsctlError) else f"answers: {type(error).__name__}")
        self._results.put(answers)


@dataclass(slots=True, kw_only=True)
class AlertPeople:
    """Alerts of a site. Keep the object between cycles: channels that hang are not asked again meanwhile."""

    app: App
    isolation: Isolation[Unit, Any]
    vouches: bool
    """Whether the cycles are complete, so that a ping vouches for every watchdog and train."""
    senders: Senders = field(init=False)
    answers: AnswerPoller = field(default_factory=AnswerPoller)

    def __post_init__(self) -> None:
        self.senders = Senders(self.app.clock)

    @property
    def is_owner(self) -> bool:
        """Whether this user owns the site's alerts. Other users only reconcile their own trains."""
        path, spare = self.app.alerting.site.path, self.app.alerting.spare.path
        try:
            return path.stat().st_uid == os.geteuid()
        except OSError:
            # The directory does not exist yet: a user who can create the directory becomes the owner.
            return not path.parent.is_dir() or os.access(path.parent, os.W_OK) or has_listed(spare / "watch")

    def open_memory(self, problems: CycleProblems) -> WatchdogMemory:
        alerting = self.app.alerting
        spare = alerting.spare.path / "watch"
        if not self.is_owner:
            return WatchdogMemory(spare, problems.lines)
        return WatchdogMemory(alerting.site.path / "watch", problems.lines, spare)

    def begin(self, problems: CycleProblems) -> None:
        """Start to read answers, and report the start of the cycle to the dead-man's switch."""
        if self.is_owner:
            with contextlib.suppress(OpsctlError):  # an unreadable ledger is reported by `notify`
                self.answers.start(self.app.alerting)
            self._ping(PingKind.START, "", problems)

    def apply_answers(self, runs: Sequence[RunDir], problems: CycleProblems) -> list[Finding]:
        """Do what the answers ask for; return the finding about those that could not be read, or can be again."""

        def find_chain(train: str) -> TrainArrays:
            run = next((run for run in runs if run.name == train), None)
            if run is None:
                raise InputError(f"no train {train!r}")
            return self.app.arrays(run)

        lines, failures = self.answers.apply(self.app.alerting, find_chain, NodeCare.of(self.app))
        problems.lines += failures
        for line in lines:
            log.info("answer: %s", line)
        says = state("site.answers_unread", first=failures[0]) if failures else state("site.answers_read")
        severity = Severity.WARNING if failures else Severity.OK
        finding = Finding(key=SITE_ANSWERS, severity=severity, says=says, evidence=tuple(failures))
        return drop_usual([finding], read_entries(self.app.alerting))

    def notify(
        self, findings: Sequence[Finding], ledger: AlertLedger, problems: CycleProblems
    ) -> tuple[list[Transition], list[Delivery]]:
        """Record the findings, and send what people must be notified of."""
        alerting = self.app.alerting
        transitions: list[Transition] = []
        deliveries: list[Delivery] = []
        try:
            muted = self._find_muted(findings, problems) if alerting.rules.maintenance_reservations else frozenset()
            transitions = replace(ledger, muted=muted).record(findings)
            deliveries = dispatch.send_alerts(alerting, self.senders, wait_s=SEND_WAIT_S)
        except (OpsctlError, OSError) as error:
            problems.fail(f"alerting: {error}")
        return transitions, deliveries

    def _find_muted(self, findings: Sequence[Finding], problems: CycleProblems) -> frozenset[str]:
        """Return the keys that maintenance explains; none while Slurm does not answer."""
        try:
            return find_maintenance(findings, self.app.slurm.reservations(), self.app.clock.now())
        except OpsctlError as error:
            problems.lines.append(error.message)
            return frozenset()

    def ping(
        self, trains: Iterable[str], findings: Sequence[Finding], problems: CycleProblems, *, seconds: float
    ) -> None:
        """Report the end of the cycle to the dead-man's switches of the site and of the trains."""
        kind = PingKind.SUCCESS if problems.is_complete else PingKind.FAIL
        self._ping(kind, describe_cycle(findings, problems.lines, seconds), problems)
        pings = list_train_pings(self.app.alerting, trains, findings)
        results = self.isolation.run({("ping", train): send for train, send in pings})
        problems.lines += [f"alerting: {result.why}" for result in results.values() if isinstance(result, Failed)]

    def _ping(self, kind: PingKind, text: str, problems: CycleProblems) -> None:
        if self.vouches:
            try:
                dispatch.ping(self.app.alerting, kind, text)
            except (OpsctlError, OSError) as error:
                problems.lines.append(f"alerting: {error}")

    def finish_sending(self) -> Collection[str]:
        """Wait for the channels that still send, a bounded time; return those that do not answer."""
        running = self.senders.wait(FINISH_WAIT_S)
        try:
            log_deliveries(self.senders.collect())
        except (OpsctlError, OSError) as error:
            log.warning("alerting: %s", error)
        return running


def find_maintenance(findings: Iterable[Finding], reservations: Iterable[Reservation], now: datetime) -> frozenset[str]:
    """Return the keys about nodes under maintenance, and about waits of trains meanwhile. Pure."""
    active = [
        reservation
        for reservation in reservations
        if "MAINT" in reservation.flags and (reservation.start or now) <= now < (reservation.end or now)
    ]
    nodes = set(union(reservation.nodes for reservation in active))
    muted = set()
    for finding in findings:
        is_wait = finding.key.startswith("slurm_status/") and finding.severity is not Severity.CRITICAL
        is_node = bool(finding.node) and set(expand(finding.node)) <= nodes
        if active and (is_wait or is_node):
            muted.add(finding.key)
    return frozenset(muted)


def describe_cycle(findings: Sequence[Finding], problems: Iterable[str], seconds: float) -> str:
    """Return the text of the site's ping: the problems of the cycle and the findings that are not ok."""
    bad = [f"{finding.severity.value}: {finding.summary}" for finding in findings if not finding.is_ok]
    head = f"{len(findings)} findings, {len(bad)} not ok, in {seconds:.1f} s"
    return "\n".join([head, *(f"problem: {problem}" for problem in problems), *bad])


def list_train_pings(
    alerting: Alerting, trains: Iterable[str], findings: Sequence[Finding]
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Return the ping of each train: fail for a critical finding, success otherwise, none without knowledge."""
    for train in trains:
        own = [finding for finding in findings if finding.train == train]
        critical = [finding.summary for finding in own if finding.severity is Severity.CRITICAL]
        if not own or (not critical and all(finding.severity is Severity.UNKNOWN for finding in own)):
            continue
        kind = PingKind.FAIL if critical else PingKind.SUCCESS
        text = "\n".join(critical or [finding.summary for finding in own])
        yield train, partial(dispatch.ping_train, alerting, train, kind, text)


def _list_polls(alerting: Alerting) -> Iterator[tuple[str, Callable[[], Iterator[RawAnswer]]]]:
    for name, table in alerting.channels.items():
        if isinstance(table, SlackTable) and table.reads_answers:
            from opsctl.alerts.channels import slack  # noqa: PLC0415 (as below)

            yield name, partial(slack.poll, name, table, _find_references(alerting, name))
        elif isinstance(table, EmailTable) and table.imap_server:
            from opsctl.alerts.channels import email  # noqa: PLC0415 (only for sites that read mail)

            yield name, partial(email.poll, name, table, alerting.clock.now())
        elif isinstance(table, NtfyTable) and table.reads_answers:
            from opsctl.alerts.channels import ntfy  # noqa: PLC0415 (as above)

            yield name, partial(ntfy.poll, name, table, alerting.clock.now())
        elif isinstance(table, AppriseTable) and table.reads_answers:
            from opsctl.alerts.channels import pagerduty  # noqa: PLC0415 (as above)

            yield name, partial(pagerduty.poll, name, table, _find_roots(alerting, name))


def _find_roots(alerting: Alerting, channel: str) -> list[str]:
    """Return the ids of the first messages to the channel of open alerts, and of alerts that were open until lately."""
    state, now = alerting.ledger.read(), alerting.clock.now()
    incidents = {entry.incident for entry in state.entries.values() if entry.is_open}
    incidents |= {incident for incident, thread in state.threads.items() if now - thread.at < READ_AFTER_END}
    threads = [thread for incident, thread in state.threads.items() if incident in incidents]
    return list(dict.fromkeys(thread.roots[channel] for thread in threads if channel in thread.roots))


def _find_references(alerting: Alerting, channel: str) -> dict[str, str]:
    """Return the channel's names for the first messages of these alerts, by the ids of the messages."""
    references = {}
    for root in _find_roots(alerting, channel):
        references[root] = next(filter(None, (box.reference(channel, root) for box in alerting.outboxes)), "")
    return {root: reference for root, reference in references.items() if reference}
