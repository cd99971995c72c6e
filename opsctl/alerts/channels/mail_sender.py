"""Who sent a mail, as the own mail server has verified it. What a mail says of itself proves nothing."""

import email.utils
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from email.parser import BytesHeaderParser

MAX_HEADER_CHARS = 10_000
MAX_AGE = timedelta(days=2)
"""By the Date header: an older mail is a copy that somebody has kept."""
_FROM = re.compile(r'(?:[^<>",;:()@\\]{0,200}|"[^"\\]{0,200}")\s*<([^<>@\s",;:()]+@[\w.-]+)>|([^<>@\s",;:()]+@[\w.-]+)')
"""Exactly one address, with or without a name."""
_METHOD = re.compile(r"\s*(dmarc|dkim|auth)\s*=\s*pass\b(.*)", re.IGNORECASE | re.DOTALL)
_PROPERTY = re.compile(r"([\w.-]{1,50})\s*=\s*([^\s;]{1,300})")


def find_sender(raw: bytes, server: str, now: datetime) -> str:
    """Return the address of the sender of a fresh mail; empty unless `server` has verified the address or its domain.

    Only the topmost Authentication-Results header of `server` counts: those below may have come with the mail.
    """
    mail = BytesHeaderParser().parsebytes(raw)  # parts within parts would recurse
    senders = [" ".join(str(value)[:MAX_HEADER_CHARS].split()) for value in mail.get_all("From", ())]
    match = _FROM.fullmatch(senders[0]) if len(senders) == 1 else None
    if match is None or not _is_fresh(mail.get_all("Date", ()), now):
        return ""
    address = (match[1] or match[2]).lower()
    for value in mail.get_all("Authentication-Results", ()):
        text = str(value)[:MAX_HEADER_CHARS].lower()
        if text.partition(";")[0].split()[:1] == [server.lower()]:
            return address if any(_proves(result, address) for result in _drop_texts(text).split(";")[1:]) else ""
    return ""


def _is_fresh(dates: Sequence[object], now: datetime) -> bool:
    try:
        [date] = dates  # a signature covers the lowest of several
        return abs(now - email.utils.parsedate_to_datetime(str(date)[:100])) <= MAX_AGE
    except (ValueError, TypeError, IndexError):  # no date, or without a time zone
        return False


def _drop_texts(value: str) -> str:
    """Return a header without comments and quoted texts, which hold what the sender likes."""
    outside, depth, is_quoted, is_escaped = [], 0, False, False
    for character in value:
        if is_escaped or character == "\\":
            is_escaped = not is_escaped
            continue
        if character == '"' and not depth:
            is_quoted = not is_quoted
        elif not is_quoted and character in "()":
            depth = depth + 1 if character == "(" else max(0, depth - 1)
        elif not is_quoted and not depth:
            outside.append(character)
    return "".join(outside)


def _proves(result: str, address: str) -> bool:
    """Whether one result is a pass for the domain of the address, or for the address itself."""
    match = _METHOD.match(result)
    if match is None:
        return False
    pairs, domain = _PROPERTY.findall(match[2]), address.rpartition("@")[2]
    facts = dict(pairs)
    if len(facts) < len(pairs):
        return False  # which of two values was verified is unknown
    if match[1] == "auth":
        return facts.get("smtp.auth") == address
    if match[1] == "dmarc":
        return facts.get("header.from") == domain
    signer = facts.get("header.d") or facts.get("header.i", "").rpartition("@")[2]
    return "." in signer and (domain == signer or domain.endswith(f".{signer}"))
