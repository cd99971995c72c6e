"""What a person's answer to an alert asks for. An answer is one of a few exact forms; its text is never run. Pure."""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from opsctl.alerts.own_line import EMPHASIS, find_own_line
from opsctl.base.tables import read_package_table
from opsctl.base.units import parse_duration

MAX_SILENCE = timedelta(days=7)
MAX_REASON_CHARS = 200
MAX_LINE_CHARS = 1000
SIGNATURE_CHARS = 24
FORMS = "ack, silence 2h, hold: why, release"
"""What to write, as an answer that was not understood names it."""


class AnswerVerb(StrEnum):
    ACK = "ack"
    SILENCE = "silence"
    HOLD = "hold"
    RELEASE = "release"
    CONFIRM = "confirm"


BUTTONS = {"silence": "silence 4h"}
"""The answers of buttons that are more than their word."""
_TABLE = read_package_table("alerts/answers.toml")
_FORMS = {name: re.compile(form, re.IGNORECASE) for name, form in _TABLE["forms"].items()}
_ACK_NAMES = "|".join(re.escape(name) for name, text in _TABLE["reactions"].items() if text == "ack")
_SIGNS = re.compile(rf"(?:\s*(?:[👍👌✅✔☑👀]|:(?:{_ACK_NAMES}):))+$")
"""Signs that acknowledge, alone or behind a word."""
_SKIN = re.compile(r":skin-tone-\d:|[\U0001f3fb-\U0001f3ff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAnswer:
    id: str
    """The channel's own name for the answer."""
    channel: str
    message: str
    """Id of the alert that is answered."""
    sender: str
    """The channel's name for the person: a user id of Slack or PagerDuty, a mail address, `ntfy:CHANNEL`."""
    text: str
    is_confirmed: bool = True
    """Whether the result is sent to the channel. To PagerDuty that would resolve the incident."""
    is_button: bool = False
    """Whether the person pressed a button that names the action, so that nothing needs to be confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    verb: AnswerVerb
    until: datetime | None = None
    """End of a silence."""
    train: str = ""
    """The train to hold or release; empty for the alert's."""
    reason: str = ""


def parse_answer(text: str, now: datetime) -> Instruction | None:
    """Return what the first line of the person's own text asks for; None for anything but an exact form.

    `now` is in the site's time zone, for silences until a time of day.
    """
    parse = partial(_parse_line, now=now)
    return parse(find_own_line(text, lambda line: parse(line) is not None))


def _parse_line(line: str, now: datetime) -> Instruction | None:
    if len(line) > MAX_LINE_CHARS:
        return None
    words = _SKIN.sub("", line).replace("\ufe0f", "")
    text = _SIGNS.sub("", words)
    if words and not text:
        return Instruction(verb=AnswerVerb.ACK)
    line = _FORMS["thanks"].sub("", " ".join(text.split())).strip(EMPHASIS).rstrip(".!")
    for form, read in (("ack", _read_ack), ("silence", partial(_read_silence, now=now)), ("steer", _read_steer)):
        if match := _FORMS[form].fullmatch(line):
            return read(match)
    return Instruction(verb=AnswerVerb.CONFIRM) if _FORMS["confirm"].fullmatch(line) else None


def _read_reason(match: re.Match[str]) -> str:
    return (match["reason"] or "")[:MAX_REASON_CHARS]


def _read_ack(match: re.Match[str]) -> Instruction | None:
    reason = _read_reason(match)
    return None if reason.endswith("?") else Instruction(verb=AnswerVerb.ACK, reason=reason)


def _read_silence(match: re.Match[str], now: datetime) -> Instruction | None:
    """Return the silence; None without a time that can be read: no silence has a length that nobody wrote."""
    begin = now.astimezone(UTC)
    try:
        until = _read_until(match["until"], now) if match["until"] else begin + _read_span(match["span"])
    except (ValueError, OverflowError):
        return None
    if not begin < until <= begin + MAX_SILENCE:
        return None
    return Instruction(verb=AnswerVerb.SILENCE, until=until, reason=_read_reason(match))


def _read_span(text: str) -> timedelta:
    """Read `2h`, `2 hours`, `1 h 30 min`. Raises ValueError."""
    if _FORMS["span"].sub("", text):
        raise ValueError(text)
    return parse_duration(_FORMS["span"].sub(r"\1\2\3\4\5", text).lower())


def _read_until(text: str, now: datetime) -> datetime:
    """Read a time of day, the next one or that of a given day. Raises ValueError."""
    match = _FORMS["until"].fullmatch(text)
    if match is None:
        raise ValueError(text)
    until = now.replace(fold=0, hour=int(match["hour"]), minute=int(match["minute"]), second=0, microsecond=0)
    day = match["day"] or ""
    if "-" in day:
        date = datetime.fromisoformat(day)
        until = until.replace(year=date.year, month=date.month, day=date.day)
    elif day or until <= now:
        until += timedelta(days=1)
    return until.astimezone(UTC)


def _read_steer(match: re.Match[str]) -> Instruction:
    verb, train = AnswerVerb(match["verb"].lower()), (match["train"] or "").rstrip(".")
    return Instruction(verb=verb, train=train, reason=_read_reason(match))


def find_person(people: Mapping[str, Sequence[str]], sender: str) -> str:
    """Return the name of the person with this sender; empty for anybody who is not listed."""
    wanted = sender.strip().lower()
    names = (name for name, senders in people.items() if wanted in {known.lower() for known in senders})
    return next(names, "")


def sign(key: str, message: str) -> str:
    """Return the signature of a message's id, which a reply carries back."""
    return hmac.new(key.encode(), message.encode(errors="replace"), hashlib.sha256).hexdigest()[:SIGNATURE_CHARS]


def verify(key: str, signed: str) -> str:
    """Return the message's id of `<id>.<signature>`; empty if the signature is not ours."""
    message, _, signature = signed.rpartition(".")
    expected, stated = sign(key, message).encode(), signature.encode(errors="replace")  # text must be ASCII there
    return message if message and hmac.compare_digest(expected, stated) else ""


def list_objects(rows: Any) -> list[dict[str, Any]]:
    """Return the objects of a list in a service's answer; nothing for anything else."""
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
