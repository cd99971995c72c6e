"""Answers by ntfy: what the buttons of an alert have posted to the answer topic, polled as JSON.

ntfy names no sender. Who may subscribe to the topic of the alerts has the signed buttons; a site gives each person a
channel of their own and lists `ntfy:CHANNEL` in [alerts.people].
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from opsctl.alerts.answers.answer import RawAnswer, verify
from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.outbox import Undelivered
from opsctl.base.web import FAILURES, describe, fetch, open_session, parse_address
from opsctl.settings.alerts import NtfyTable

TIMEOUT_S = 10.0
LOOK_BACK = "12h"
"""ntfy keeps messages for 12 hours by default."""
MAX_BYTES = 1 << 20
MAX_ANSWERS = 200
SENDER = "ntfy:"
"""Beginning of the names of senders in [alerts.people]; the name of the channel follows."""


def poll(channel: str, table: NtfyTable) -> list[RawAnswer]:
    """Return the signed answers of the last hours. Raises Undelivered."""
    topic, key, token = (reveal(table, field) for field in ("answer_topic", "answer_key", "token"))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        address = parse_address(f"{table.server.rstrip('/')}/{topic}/json?poll=1&since={LOOK_BACK}")
        with fetch(open_session(), address, timeout=TIMEOUT_S, headers=headers) as response:
            data, status = response.read(MAX_BYTES), response.status
    except (*FAILURES, ValueError) as error:
        raise Undelivered(f"answers of {channel}: " + mask(describe(error), [topic, key, token])) from None
    if status != 200:
        raise Undelivered(f"answers of {channel}: {table.server} answered {status}")
    return list(_read(data, channel, topic, key))[-MAX_ANSWERS:]


def _read(data: bytes, channel: str, topic: str, key: str) -> Iterator[RawAnswer]:
    for line in data.splitlines():
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(fields, dict) or fields.get("event") != "message":
            continue
        text, _, signed = str(fields.get("message", "")).strip().rpartition(" ")
        if message := verify(key, f"{topic}/{signed}").removeprefix(f"{topic}/"):
            yield RawAnswer(
                id=str(fields.get("id", "")), channel=channel, message=message, sender=f"{SENDER}{channel}", text=text
            )
