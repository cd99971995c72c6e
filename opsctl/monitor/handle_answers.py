"""Read the answers of people to alerts and act on them: acknowledge, silence, hold, release."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from opsctl.alerts.answer import AnswerVerb, Instruction, RawAnswer, find_person, parse_answer
from opsctl.alerts.dispatch import Alerting, enqueue
from opsctl.alerts.ledger_state import LedgerEntry, LedgerState
from opsctl.alerts.message import Message
from opsctl.alerts.outbox_item import OutboxItem
from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.findings import Level
from opsctl.launch.rollback_state import check_may_hold, check_not_rolling_back
from opsctl.launch.train_arrays import TrainArrays
from opsctl.settings.alert_channels import AppriseTable, EmailTable, NtfyTable, SlackTable
from opsctl.state import switches
from opsctl.state.events import RequestDone
from opsctl.state.files import MAX_STATE_BYTES, read_json
from opsctl.state.lease import lease
from opsctl.state.reasons import as_written
from opsctl.state.run_dir import may_act
from opsctl.state.switches import Switch

WAIT_S = 3.0
"""A cycle waits this long for the answers of each channel. Later answers wait for the next cycle."""
MAX_REMEMBERED = 2000
"""Handled answers that are remembered, so that none is handled twice."""

FindChain = Callable[[str], TrainArrays]
"""Returns the arrays of a train by name. Raises InputError."""


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

    def apply(self, alerting: Alerting, find_chain: FindChain) -> tuple[list[str], list[str]]:
        """Do what the answers so far ask for; return sentences on what was done, and the failures."""
        answers, problems = self.take(WAIT_S)
        try:
            return apply_answers(alerting, answers, find_chain), problems
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

            yield name, partial(ntfy.poll, name, table)
        elif isinstance(table, AppriseTable) and table.reads_answers:
            from opsctl.alerts.channels import pagerduty  # noqa: PLC0415 (as above)

            yield name, partial(pagerduty.poll, name, table, _find_roots(alerting, name))


def _find_roots(alerting: Alerting, channel: str) -> list[str]:
    """Return the ids of the first messages of open alerts to the channel."""
    state = alerting.ledger.read()
    roots = []
    for entry in state.entries.values():
        thread = state.threads.get(entry.incident)
        roots += [thread.roots[channel]] if thread and channel in thread.roots and entry.level is not Level.OK else []
    return list(dict.fromkeys(roots))


def _find_references(alerting: Alerting, channel: str) -> dict[str, str]:
    """Return the channel's names for the first messages of open alerts, by the ids of the messages."""
    references = {}
    for root in _find_roots(alerting, channel):
        references[root] = next(filter(None, (box.reference(channel, root) for box in alerting.outboxes)), "")
    return {root: reference for root, reference in references.items() if reference}


def apply_answers(alerting: Alerting, answers: Sequence[RawAnswer], find_chain: FindChain) -> list[str]:
    """Do what listed people ask for, once for each answer; journal and confirm. Return a sentence for each.

    An answer that is interrupted is handled again by the next cycle.
    """
    path = alerting.site.alerts / "answers.json"
    done: list[str] = []
    try:
        handled = list(map(str, read_json(path, MAX_STATE_BYTES)))
    except (OSError, ValueError, TypeError):
        handled = []
    new = {_name(answer): answer for answer in answers if _name(answer) not in handled}
    for name, answer in new.items():
        done += _handle(alerting, answer, find_chain)
        handled.append(name)
    if new:
        alerting.site.write(path, json.dumps(handled[-MAX_REMEMBERED:]) + "\n")
    return done


def _name(answer: RawAnswer) -> str:
    return hashlib.sha256(f"{answer.channel} {answer.id} {answer.sender}".encode()).hexdigest()[:16]


def _handle(alerting: Alerting, answer: RawAnswer, find_chain: FindChain) -> list[str]:
    instruction = parse_answer(answer.text)
    if instruction is None:
        return []
    person = find_person(alerting.rules.people, answer.sender)
    facts = {"verb": instruction.verb, "channel": answer.channel, "sender": answer.sender, "message": answer.message}
    if not person:
        alerting.ledger.journal("answer-refused", **facts, why="not in [alerts.people]")
        return []
    state = alerting.ledger.read()
    results = [
        _do(alerting, entry, instruction, f"{person} by {answer.channel}", find_chain)
        for entry in _find_entries(state, answer)
    ]
    results = list(dict.fromkeys(results)) or ["the alert is no longer open: nothing done"]
    alerting.ledger.journal("answer", **facts, by=person, done=results)
    if answer.is_confirmed:
        _confirm(alerting, state, answer, person, results)
    return [f"{person} by {answer.channel}: {result}" for result in results]


def _find_entries(state: LedgerState, answer: RawAnswer) -> list[LedgerEntry]:
    """Return the open alerts that the answered message reported: one, or those of a group."""
    incident = answer.message.rpartition(".")[0]
    entries = []
    for entry in state.entries.values():
        thread = state.threads.get(entry.incident)
        is_meant = entry.incident == incident or (thread and thread.roots.get(answer.channel) == answer.message)
        if entry.level is not Level.OK and is_meant:
            entries.append(entry)
    return entries


def _do(alerting: Alerting, entry: LedgerEntry, instruction: Instruction, by: str, find_chain: FindChain) -> str:
    reason, key = instruction.reason or "answered", entry.key
    try:
        if instruction.verb is AnswerVerb.ACK:
            alerting.ledger.ack(key, reason, by=by)
            return f"{key} acknowledged"
        if instruction.verb is AnswerVerb.SILENCE:
            until = alerting.clock.now() + instruction.span
            alerting.ledger.silence(key, until, reason, by=by)
            return f"{key} silenced until {until:%Y-%m-%d %H:%M} UTC"
        if not entry.finding or not entry.finding.train:
            return f"{key} belongs to no train: nothing to {instruction.verb}"
        return _hold_or_release(find_chain(entry.finding.train), instruction, f"{by}: {reason}")
    except OpsctlError as error:
        return f"{instruction.verb} of {key} refused: {error.message}"


def _hold_or_release(arrays: TrainArrays, instruction: Instruction, why: str) -> str:
    train = arrays.run.name
    if not may_act(arrays.run):
        raise InputError(f"{train} belongs to another user")
    check = check_may_hold if instruction.verb is AnswerVerb.HOLD else check_not_rolling_back
    with lease(arrays.run.path, arrays.journal.clock):
        check(arrays.run, arrays.journal.clock)
        if instruction.verb is AnswerVerb.HOLD:
            ids = arrays.hold(as_written(why))
            return f"{train}: held {', '.join(ids) or 'nothing: no task is queued'}"
        for switch in Switch.KILL, Switch.PAUSE:
            if armed := switches.read(arrays.run, switch):
                raise InputError(f"{armed.by} armed the {switch.value} switch")
        ids = arrays.release()
        arrays.journal.append(RequestDone(verb="release", by=why))
    return f"{train}: released {', '.join(ids) or 'nothing'}"


def _confirm(alerting: Alerting, state: LedgerState, answer: RawAnswer, person: str, results: Sequence[str]) -> None:
    """Send the results into the thread of the alert."""
    incident = answer.message.rpartition(".")[0]
    thread = state.threads.get(incident)
    message = Message(
        id=f"answer-{_name(answer)}",
        root=thread.roots.get(answer.channel, answer.message) if thread else answer.message,
        at=alerting.clock.now(),
        level=Level.OK,
        subject=f"[{alerting.rules.site_name}] {person}: {results[0]}",
        body="\n".join([*results, ""]),
    )
    enqueue(alerting, OutboxItem(message=message, channel=answer.channel, number=state.number))
