"""Answers that were handled, steps that wait for a second answer, and threads that were told what can be written."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pydantic import TypeAdapter

from opsctl.alerts.answer import AnswerVerb
from opsctl.base.errors import RunDirError
from opsctl.state.files import MAX_STATE_BYTES, read_json
from opsctl.state.records import HEADER
from opsctl.state.site_dir import SiteDir

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


def load(site: SiteDir) -> AnswerMemory:
    """Return what is remembered; nothing without a file.

    Raises RunDirError for one that cannot be read: every answer could then be sent again.
    """
    path = site.alerts / "answers.json"
    try:
        return _MEMORY.validate_python(read_json(path, MAX_STATE_BYTES))
    except FileNotFoundError:
        return AnswerMemory()
    except (OSError, ValueError, TypeError) as error:
        hint = "two days after the last answer, nobody can send one again: remove the file then"
        raise RunDirError(f"{path}: which answers were handled is unknown: {error!s:.200}", hint=hint) from error


def store(site: SiteDir, memory: AnswerMemory) -> None:
    memory.handled, memory.strangers = memory.handled[-MAX_REMEMBERED:], memory.strangers[-MAX_REMEMBERED:]
    site.write(site.alerts / "answers.json", json.dumps({**HEADER, **_MEMORY.dump_python(memory, mode="json")}) + "\n")
