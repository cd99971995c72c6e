"""ntfy: a message to a topic, with buttons that answer the alert."""

from __future__ import annotations

import json
from typing import Any

from opsctl.alerts.answers.answer import sign
from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.channels.webhook import TIMEOUT_S, post_json
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.findings import Level
from opsctl.base.ports import Runner
from opsctl.base.web import parse_address
from opsctl.settings.alerts import NtfyTable

PRIORITIES = {Level.OK: 3, Level.UNKNOWN: 3, Level.WARNING: 3, Level.CRITICAL: 5}
TAGS = {
    Level.OK: "white_check_mark",
    Level.UNKNOWN: "grey_question",
    Level.WARNING: "warning",
    Level.CRITICAL: "rotating_light",
}
LABELS = {"ack": "Acknowledge", "silence": "Silence 4 h", "hold": "Hold train", "release": "Release train"}
WORDS = {"silence": "silence 4h"}
MAX_BODY_BYTES = 3500
"""ntfy turns a message of more than 4096 bytes into a file."""


class Ntfy:
    def __init__(self, table: NtfyTable, runner: Runner) -> None:  # noqa: ARG002 (every channel takes a runner)
        self._table = table
        self._topic, self._token = reveal(table, "topic"), reveal(table, "token")
        self._answer_topic = reveal(table, "answer_topic")
        self._answer_key = reveal(table, "answer_key") if self._answer_topic else ""
        self._answer_token = reveal(table, "answer_token")
        try:
            self._address = parse_address(table.server)
        except ValueError:
            raise Undelivered("server: must start with https://", is_permanent=True) from None

    def send(self, message: Message, *, reply_to: str = "") -> str:  # noqa: ARG002 (ntfy has no threads)
        fields: dict[str, Any] = {
            "topic": self._topic,
            "title": message.subject,
            "message": message.body.encode()[:MAX_BODY_BYTES].decode(errors="ignore"),
            "priority": PRIORITIES[message.level],
            "tags": [TAGS[message.level]],
        }
        if self._answer_topic and message.level is not Level.OK:
            fields["actions"] = [self._make_button(word, message) for word in self._table.buttons]
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        post_json(self._address, json.dumps(fields), headers=headers, timeout=TIMEOUT_S, hide=self._hide)
        return ""

    def _make_button(self, word: str, message: Message) -> dict[str, Any]:
        signature = sign(self._answer_key, f"{self._answer_topic}/{message.id}")
        button: dict[str, Any] = {
            "action": "http",
            "label": LABELS[word],
            "url": f"{self._address.url.rstrip('/')}/{self._answer_topic}",
            "method": "POST",
            "body": f"{WORDS.get(word, word)} {message.id}.{signature}",
            "clear": True,
        }
        return button | ({"headers": {"Authorization": f"Bearer {self._answer_token}"}} if self._answer_token else {})

    def _hide(self, text: str) -> str:
        secrets = [self._topic, self._token, self._answer_topic, self._answer_key, self._answer_token]
        return "ntfy: " + mask(text, secrets)
