"""What a person's answer to an alert asks for. An answer is one of four words; its text is never run. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from opsctl.base.units import parse_duration

MAX_SILENCE = timedelta(days=7)
DEFAULT_SILENCE = timedelta(hours=4)
MAX_REASON_CHARS = 200
SIGNATURE_CHARS = 24


class AnswerVerb(StrEnum):
    ACK = "ack"
    SILENCE = "silence"
    HOLD = "hold"
    RELEASE = "release"


WORDS = {"acknowledge": AnswerVerb.ACK, **{verb.value: verb for verb in AnswerVerb}}
REACTIONS = {
    **dict.fromkeys(("eyes", "white_check_mark", "heavy_check_mark", "+1", "ok_hand"), AnswerVerb.ACK),
    **dict.fromkeys(("zzz", "no_bell", "mute"), AnswerVerb.SILENCE),
}
"""Reactions of Slack. A train is held or released by words only: a reaction is given too easily."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    verb: AnswerVerb
    span: timedelta = DEFAULT_SILENCE
    """Length of a silence."""
    reason: str = ""


def parse_answer(text: str) -> Instruction | None:
    """Return what the first line asks for; None for any other text, such as a discussion in the thread."""
    lines = (line.strip() for line in text.splitlines())
    line = next((line for line in lines if line and not line.startswith(">")), "")
    first, *words = line.split() or [""]
    verb = WORDS.get(first.lower().rstrip(".,:;!"))
    if verb is None:
        return None
    span = DEFAULT_SILENCE
    if verb is AnswerVerb.SILENCE and words:
        try:
            span = min(parse_duration(words[0].lower()), MAX_SILENCE)
            words = words[1:]
        except ValueError:
            pass  # the reason begins at once
    return Instruction(verb=verb, span=span, reason=" ".join(words)[:MAX_REASON_CHARS])


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
