"""Read the answers of people to alerts from every channel that has any, and have them applied."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from queue import SimpleQueue

from opsctl.alerts.answer import RawAnswer
from opsctl.alerts.dispatch import Alerting
from opsctl.base.errors import OpsctlError
from opsctl.base.findings import Level
from opsctl.guard.node_care import NodeCare
from opsctl.monitor.apply_answers import FindChain, apply_answers
from opsctl.settings.alert_channels import AppriseTable, EmailTable, NtfyTable, SlackTable

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
            if channel not in self._threads or not self._threads[channel].is_alive():
                thread = threading.Thread(target=self._work, args=(read,), daemon=True, name=f"answers of {channel}")
                self._threads[channel] = thread
                thread.start()

    def apply(
        self, alerting: Alerting, find_chain: FindChain, care: NodeCare | None = None
    ) -> tuple[list[str], list[str]]:
        """Do what the answers so far ask for; return sentences on what was done, and the failures."""
        answers, problems = self.take(WAIT_S)
        try:
            return apply_answers(alerting, answers, find_chain, care), problems
        except (OpsctlError, OSError) as error:
            return [], [*problems, f"answers: {error}"]

    def take(self, wait_s: float) -> tuple[list[RawAnswer], list[str]]:
        """Return the answers so far and the failures, after at most `wait_s` seconds for each channel."""
        for thread in list(self._threads.values()):
            thread.join(wait_s)
        answers: list[RawAnswer] = []
        problems: list[str] = []
        while not self._results.empty():
            result = self._results.get()
            if isinstance(result, str):
                problems.append(result)
            else:
                answers += result
        return answers, problems

    def _work(self, read: Callable[[], list[RawAnswer]]) -> None:
        try:
            self._results.put(read())
        except Exception as error:  # noqa: BLE001 (reported; answers must not stop the watch)
            self._results.put(error.message if isinstance(error, OpsctlError) else f"answers: {type(error).__name__}")


def _list_polls(alerting: Alerting) -> Iterator[tuple[str, Callable[[], list[RawAnswer]]]]:
    for name, table in alerting.channels.items():
        if isinstance(table, SlackTable) and table.reads_answers:
            from opsctl.alerts.channels import slack  # noqa: PLC0415 (needs the alerts extra)

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
    incidents = {entry.incident for entry in state.entries.values() if entry.level is not Level.OK}
    incidents |= {incident for incident, thread in state.threads.items() if now - thread.at < READ_AFTER_END}
    threads = [thread for incident, thread in state.threads.items() if incident in incidents]
    return list(dict.fromkeys(thread.roots[channel] for thread in threads if channel in thread.roots))


def _find_references(alerting: Alerting, channel: str) -> dict[str, str]:
    """Return the channel's names for the first messages of these alerts, by the ids of the messages."""
    references = {}
    for root in _find_roots(alerting, channel):
        references[root] = next(filter(None, (box.reference(channel, root) for box in alerting.outboxes)), "")
    return {root: reference for root, reference in references.items() if reference}
