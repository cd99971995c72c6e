"""ntfy: a message to a topic, with buttons that answer the alert, and what the buttons have posted to the answer topic.

ntfy names no sender. Who may subscribe to the topic of the alerts has the signed buttons; a site gives each person a
channel of their own and lists `ntfy:CHANNEL` in [alerts.people].
"""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from opsctl.alerts.answer import BUTTONS, RawAnswer, sign, verify
from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.channels.webhook import TIMEOUT_S, authorize, parse_setting, post_json
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.findings import Severity
from opsctl.base.ports import Runner
from opsctl.base.web import FAILURES, describe, fetch, open_session, parse_address
from opsctl.settings.alert_channels import NtfyTable
from opsctl.state.files import parse_objects

TAGS = {
    Severity.OK: "white_check_mark",
    Severity.UNKNOWN: "grey_question",
    Severity.WARNING: "warning",
    Severity.CRITICAL: "rotating_light",
}
LABELS = {"ack": "Acknowledge", "silence": "Silence 4 h", "hold": "Hold train", "release": "Release train"}
MAX_BODY_BYTES = 3500
"""ntfy turns a message of more than 4096 bytes into a file."""
LOOK_BACK = "12h"
"""ntfy keeps messages for 12 hours by default."""
MAX_ANSWER_BYTES = 1 << 20
MAX_ANSWERS = 200
VALID_FOR = timedelta(days=2)
"""A button of an older alert does nothing."""
SENDER = "ntfy:"
"""Beginning of the names of senders in [alerts.people]; the name of the channel follows."""


class Ntfy:
    def __init__(self, table: NtfyTable, runner: Runner) -> None:  # noqa: ARG002 (every channel takes a runner)
        self._table = table
        self._topic, self._token = reveal(table, "topic"), reveal(table, "token")
        self._answer_topic = reveal(table, "answer_topic")
        self._answer_key = reveal(table, "answer_key") if self._answer_topic else ""
        self._answer_token = reveal(table, "answer_token")
        self._address = parse_setting("server", table.server)

    def send(self, message: Message, *, reply_to: str = "") -> str:  # noqa: ARG002 (ntfy has no threads)
        fields: dict[str, Any] = {
            "topic": self._topic,
            "title": message.subject,
            "message": message.body.encode()[:MAX_BODY_BYTES].decode(errors="ignore"),
            "priority": 5 if message.severity is Severity.CRITICAL else 3,
            "tags": [TAGS[message.severity]],
        }
        if self._answer_topic and message.severity is not Severity.OK:
            fields["actions"] = [self._make_button(word, message) for word in self._table.buttons]
        headers = authorize(self._token)
        post_json(self._address, json.dumps(fields), headers=headers, timeout=TIMEOUT_S, hide=self._hide)
        return ""

    def _make_button(self, word: str, message: Message) -> dict[str, Any]:
        text, expiry = BUTTONS.get(word, word), int((message.at + VALID_FOR).timestamp())
        signature = sign(self._answer_key, _signed(self._answer_topic, text, f"{message.id}.{expiry}"))
        button: dict[str, Any] = {
            "action": "http",
            "label": LABELS[word],
            "url": f"{self._address.url.rstrip('/')}/{self._answer_topic}",
            "method": "POST",
            "body": f"{text} {message.id}.{expiry}.{signature}",
            "clear": True,
        }
        return button | ({"headers": authorize(self._answer_token)} if self._answer_token else {})

    def _hide(self, text: str) -> str:
        secrets = [self._topic, self._token, self._answer_topic, self._answer_key, self._answer_token]
        return "ntfy: " + mask(text, secrets)


def _signed(topic: str, text: str, alert: str) -> str:
    """Return what a button signs: all of its answer, so that no other answer can be made of it."""
    return f"{topic}/{text}/{alert}"


def poll(channel: str, table: NtfyTable, now: datetime | None = None) -> Iterator[RawAnswer]:
    """Yield the answers of buttons that have not expired at `now`.

    Raises Undelivered, also behind the last answer if the topic holds more than is read.
    """
    topic, key, token = (reveal(table, field) for field in ("answer_topic", "answer_key", "token"))
    headers = authorize(token)
    try:
        address = parse_address(f"{table.server.rstrip('/')}/{topic}/json?poll=1&since={LOOK_BACK}")
        with fetch(open_session(), address, timeout=TIMEOUT_S, headers=headers) as response:
            data, status = response.read(MAX_ANSWER_BYTES + 1), response.status
    except (*FAILURES, ValueError) as error:
        raise Undelivered(f"answers of {channel}: " + mask(describe(error), [topic, key, token])) from None
    if status != 200:
        raise Undelivered(f"answers of {channel}: {table.server} answered {status}")
    offered = {BUTTONS.get(word, word) for word in table.buttons}
    answers = [answer for answer in _read(data, channel, topic, key, now) if answer.text in offered]
    yield from answers[-MAX_ANSWERS:]
    if len(data) > MAX_ANSWER_BYTES:
        raise Undelivered(f"answers of {channel}: others post there, more than is read")


def _read(data: bytes, channel: str, topic: str, key: str, now: datetime | None) -> Iterator[RawAnswer]:
    for fields in parse_objects(data):
        if fields.get("event") != "message":
            continue
        text, _, signed = str(fields.get("message", "")).strip().rpartition(" ")
        message, _, expiry = signed.rpartition(".")[0].rpartition(".")
        is_valid = bool(verify(key, _signed(topic, text, signed))) and bool(message)
        if is_valid and (now is None or now.timestamp() <= int(expiry)):
            # By its signature, each button counts once, whoever posts its answer again.
            id, sender = signed.rpartition(".")[2], f"{SENDER}{channel}"
            yield RawAnswer(id=id, channel=channel, message=message, sender=sender, text=text, is_button=True)
