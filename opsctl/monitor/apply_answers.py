"""Do what the answers of listed people ask for: acknowledge, silence, hold, release; and answer everything else."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from zoneinfo import ZoneInfo

from pydantic import TypeAdapter

from opsctl.alerts.answer import FORMS, AnswerVerb, Instruction, RawAnswer, find_person, parse_answer
from opsctl.alerts.dispatch import Alerting, enqueue
from opsctl.alerts.ledger_state import LedgerEntry, LedgerState
from opsctl.alerts.message import ANSWER_ID_PREFIX, describe_time, find_incident, make_message
from opsctl.alerts.outbox_item import OutboxItem
from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.units import format_duration
from opsctl.guard.node_care import NodeCare
from opsctl.launch.rollback_state import check_may_hold, check_not_rolling_back
from opsctl.launch.train_arrays import TrainArrays
from opsctl.monitor.confirm_proposals import confirm_proposals
from opsctl.state import switches
from opsctl.state.events import RequestDone
from opsctl.state.lease import lease
from opsctl.state.reasons import as_written
from opsctl.state.records import HEADER, load_state
from opsctl.state.run_dir import may_act
from opsctl.state.site_dir import SiteDir
from opsctl.state.switches import Switch

MAX_QUOTED_CHARS = 200
NOT_UNDERSTOOD = f"not understood, nothing done; write alone on the first line: {FORMS}"
NOT_OPEN = "the alert is no longer open: nothing done"
FAILURES = "failures/"
"""Start of the keys of alerts in which opsctl may propose something."""
_MENTIONS = re.compile(r"\s*(?:<@(\w+)(?:\|[^>]*)?>[\s:,]*)")

FindChain = Callable[[str], TrainArrays]
"""Returns the arrays of a train by name. Raises InputError."""
MAX_REMEMBERED = 2000
"""Handled answers that are remembered, so that none is handled twice."""
CONFIRM_WITHIN = timedelta(hours=1)
MAX_REPLIES_A_DAY = 20
"""A thread gets at most this many replies to texts that are no answer: a program may be writing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnconfirmedStep:
    """A hold or a release that a second answer confirms."""

    verb: AnswerVerb
    reason: str
    by: str
    at: datetime


@dataclass(slots=True, kw_only=True)
class AnswerMemory:
    """What a later cycle needs to know, stored in `answers.json`."""

    handled: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """Answers of people who are not listed. However many, they push out none of `handled`."""
    waiting: dict[str, UnconfirmedStep] = field(default_factory=dict)
    """By train."""
    replies: dict[str, list[datetime]] = field(default_factory=dict)
    """Times of replies to texts that are no answer, by the id of the answered message."""

    def take_waiting(self, trains: Iterable[str], now: datetime) -> dict[str, UnconfirmedStep]:
        """Remove and return what still waits for these trains."""
        self.waiting = {train: step for train, step in self.waiting.items() if now - step.at <= CONFIRM_WITHIN}
        return {train: self.waiting.pop(train) for train in set(trains) & set(self.waiting)}

    def may_reply(self, message: str, now: datetime) -> bool:
        """Count one more reply below `message`; return False if there were too many since yesterday."""
        day = {name: [at for at in times if now - at < timedelta(days=1)] for name, times in self.replies.items()}
        times = day.setdefault(message, [])
        is_allowed = len(times) < MAX_REPLIES_A_DAY
        times += [now] if is_allowed else []
        self.replies = {name: times for name, times in day.items() if times}
        return is_allowed


_MEMORY = TypeAdapter(AnswerMemory)


def apply_answers(
    alerting: Alerting, answers: Sequence[RawAnswer], find_chain: FindChain, care: NodeCare | None = None
) -> list[str]:
    """Do what listed people ask for, once for each answer; journal and confirm. Return a sentence for each.

    An answer that is interrupted is handled again by the next cycle. Without `care`, nobody can confirm a proposal.
    """
    memory = load_memory(alerting.site)
    handled = {*memory.handled, *memory.strangers}
    new = {_name(answer): answer for answer in answers if _name(answer) not in handled}
    work = _Answers(alerting=alerting, memory=memory, find_chain=find_chain, care=care)
    done: list[str] = []
    for name, answer in new.items():
        done += work.handle(answer)
        is_listed = find_person(alerting.rules.people, answer.sender)
        (memory.handled if is_listed else memory.strangers).append(name)
    work.reply_to_unclear()
    if new:
        store_memory(alerting.site, memory)
    return done


def _name(answer: RawAnswer) -> str:
    return hashlib.sha256(f"{answer.channel} {answer.id} {answer.sender}".encode()).hexdigest()[:16]


@dataclass(slots=True, kw_only=True)
class _Answers:
    """The answers of one watch cycle."""

    alerting: Alerting
    memory: AnswerMemory
    find_chain: FindChain
    care: NodeCare | None
    unclear: dict[tuple[str, str], tuple[RawAnswer, str]] = field(default_factory=dict)
    """By channel and message: the last text that was not understood, and the person who wrote it."""

    @property
    def now(self) -> datetime:
        return self.alerting.clock.now()

    def handle(self, answer: RawAnswer) -> list[str]:
        """Do what one answer asks for; return a sentence for each alert."""
        people, zone = self.alerting.rules.people, self.alerting.rules.time_zone
        person = find_person(people, answer.sender)
        text = _drop_mentions(answer.text, list(chain.from_iterable(people.values())))
        instruction = parse_answer(text, self.now.astimezone(ZoneInfo(zone) if zone else None))
        facts = {"channel": answer.channel, "sender": answer.sender, "message": answer.message}
        if not person:
            if instruction:
                verb = instruction.verb
                self.alerting.ledger.journal("answer-refused", verb=verb, **facts, why="not in [alerts.people]")
            return []
        state = self.alerting.ledger.read()
        entries = _find_entries(state, answer)
        results = self._do(instruction, entries, answer, f"{person} by {answer.channel}") if instruction else []
        if instruction is None or not results:
            self.alerting.ledger.journal(
                "answer-not-understood", **facts, by=person, text=answer.text.strip()[:MAX_QUOTED_CHARS]
            )
            self.unclear[answer.channel, answer.message] = answer, person
            return []
        self.alerting.ledger.journal("answer", verb=instruction.verb, **facts, by=person, done=results)
        if answer.is_confirmed:
            self._send(state, answer, f"{person}: {results[0]}", results)
        return [f"{person} by {answer.channel}: {result}" for result in results]

    def reply_to_unclear(self) -> None:
        """Tell each thread once in a cycle what can be written, if something in it was not understood."""
        for answer, person in self.unclear.values():
            if answer.is_confirmed and self.memory.may_reply(answer.message, self.now):
                lines = [f"read: {line}" for line in answer.text.strip()[:MAX_QUOTED_CHARS].splitlines()[:1]]
                subject = f"{person}: {NOT_UNDERSTOOD}"
                self._send(self.alerting.ledger.read(), answer, subject, [NOT_UNDERSTOOD, *lines])

    def _do(self, instruction: Instruction, entries: list[LedgerEntry], answer: RawAnswer, by: str) -> list[str]:
        """Return a sentence for each result; nothing for an answer that names a train that does not exist."""
        if instruction.verb in {AnswerVerb.ACK, AnswerVerb.SILENCE}:
            results = [self._note(entry.key, instruction, by) for entry in entries]
            return list(dict.fromkeys(results)) or [NOT_OPEN]
        trains = {entry.finding.train for entry in entries if entry.finding and entry.finding.train}
        if instruction.verb is AnswerVerb.CONFIRM:
            proposing = {entry.finding.train for entry in entries if entry.finding and entry.key.startswith(FAILURES)}
            return self._confirm(trains or set(self.memory.waiting), proposing, by)
        if instruction.train and not self._exists(instruction.train):
            return []
        trains = {instruction.train} if instruction.train else trains
        verb = instruction.verb
        if len(trains) != 1:
            several = f"name the train: {verb} {' or '.join(sorted(trains))}"
            alone = f"{entries[0].key} belongs to no train: nothing to {verb}" if entries else NOT_OPEN
            return [several if trains else alone]
        return [self._steer(trains.pop(), instruction, by, is_confirmed=answer.is_button)]

    def _note(self, key: str, instruction: Instruction, by: str) -> str:
        ledger, reason = self.alerting.ledger, instruction.reason or "answered"
        try:
            if instruction.until is None:
                ledger.ack(key, reason, by=by)
                return f"{key} acknowledged"
            ledger.silence(key, instruction.until, reason, by=by)
        except OpsctlError as error:
            return f"{instruction.verb} of {key} refused: {error.message}"
        return f"{key} silenced until {describe_time(instruction.until, self.alerting.rules.time_zone)}"

    def _exists(self, train: str) -> bool:
        try:
            self.find_chain(train)
        except OpsctlError:
            return False
        return True

    def _confirm(self, trains: Iterable[str], proposing: Collection[str], by: str) -> list[str]:
        """Do what waits for a second answer, else what opsctl proposes in the answered alert."""
        steps = self.memory.take_waiting(trains, self.now)
        results = []
        for train, step in steps.items():
            instruction = Instruction(verb=step.verb, train=train, reason=step.reason)
            people = step.by if step.by == by else f"{step.by}, confirmed by {by}"
            results.append(self._steer(train, instruction, people, is_confirmed=True))
        for train in set(proposing) - set(steps):
            results += self._confirm_proposals(train, by)
        return results or ["nothing waits for a second answer: nothing done"]

    def _confirm_proposals(self, train: str, by: str) -> list[str]:
        try:
            arrays = self.find_chain(train)
            if self.care is None or not may_act(arrays.run):
                return [f"{train} belongs to another user: nothing done"]
            return [f"{train}: {done}" for done in confirm_proposals(arrays, self.care, by)]
        except OpsctlError as error:
            return [f"confirm of {train} refused: {error.message}"]

    def _steer(self, train: str, instruction: Instruction, by: str, *, is_confirmed: bool) -> str:
        """Hold or release the train if this is the second answer, or a button; else wait for the second answer."""
        verb, reason = instruction.verb, instruction.reason or "answered"
        try:
            arrays = self.find_chain(train)
            earlier = self.memory.take_waiting([train], self.now).get(train)
            is_second = earlier is not None and earlier.verb is verb
            if is_confirmed or is_second:
                return _hold_or_release(arrays, verb, f"{by}: {reason}")
            _check(arrays, verb)
        except OpsctlError as error:
            return f"{verb} of {train} refused: {error.message}"
        self.memory.waiting[train] = UnconfirmedStep(verb=verb, reason=reason, by=by, at=self.now)
        return f"{train}: to {verb}, answer confirm within {format_duration(CONFIRM_WITHIN)}; nothing done yet"

    def _send(self, state: LedgerState, answer: RawAnswer, subject: str, lines: Sequence[str]) -> None:
        """Send the results into the thread of the alert."""
        thread = state.threads.get(find_incident(answer.message))
        message = make_message(
            "answer", f"[{self.alerting.rules.site_name}] {subject}", "\n".join([*lines, ""]), self.now
        )
        root = thread.roots.get(answer.channel, answer.message) if thread else answer.message
        message = replace(message, id=f"{ANSWER_ID_PREFIX}{_name(answer)}", root=root)
        enqueue(self.alerting, OutboxItem(message=message, channel=answer.channel, number=state.number))


def _drop_mentions(text: str, senders: Sequence[str]) -> str:
    """Return the text without mentions of the bot at its start. A text to a person keeps its mention."""
    while (match := _MENTIONS.match(text)) and match[1].lower() not in {sender.lower() for sender in senders}:
        text = text[match.end() :]
    return text


def _find_entries(state: LedgerState, answer: RawAnswer) -> list[LedgerEntry]:
    """Return the open alerts that the answered message reported: one, or those of a group."""
    incident = find_incident(answer.message)
    entries = []
    for entry in state.entries.values():
        thread = state.threads.get(entry.incident)
        is_meant = entry.incident == incident or (thread and thread.roots.get(answer.channel) == answer.message)
        if entry.is_open and is_meant:
            entries.append(entry)
    return entries


def _check(arrays: TrainArrays, verb: AnswerVerb) -> None:
    """Raise InputError if the train cannot be held or released now."""
    if not may_act(arrays.run):
        raise InputError(f"{arrays.run.name} belongs to another user")
    if verb is AnswerVerb.HOLD:
        check_may_hold(arrays.run, arrays.journal.clock)
        return
    check_not_rolling_back(arrays.run, arrays.journal.clock)
    for switch in Switch.KILL, Switch.PAUSE:
        if armed := switches.read(arrays.run, switch):
            raise InputError(f"{armed.by} armed the {switch.value} switch")


def _hold_or_release(arrays: TrainArrays, verb: AnswerVerb, why: str) -> str:
    train = arrays.run.name
    with lease(arrays.run.path, arrays.journal.clock):
        _check(arrays, verb)
        if verb is AnswerVerb.HOLD:
            ids = arrays.hold(as_written(why))
            return f"{train}: held {', '.join(ids) or 'nothing: no task is queued'}"
        ids = arrays.release()
        arrays.journal.append(RequestDone(verb="release", by=why))
    return f"{train}: released {', '.join(ids) or 'nothing: no task is held'}"


def load_memory(site: SiteDir) -> AnswerMemory:
    """Return what is remembered; nothing without a file.

    Raises RunDirError for one that cannot be read: every answer could then be sent again.
    """
    hint = "which answers were handled is unknown; two days after the last one, remove the file"
    return load_state(_MEMORY.validate_python, site.alerts / "answers.json", hint) or AnswerMemory()


def store_memory(site: SiteDir, memory: AnswerMemory) -> None:
    memory.handled, memory.strangers = memory.handled[-MAX_REMEMBERED:], memory.strangers[-MAX_REMEMBERED:]
    site.write(site.alerts / "answers.json", json.dumps({**HEADER, **_MEMORY.dump_python(memory, mode="json")}) + "\n")
