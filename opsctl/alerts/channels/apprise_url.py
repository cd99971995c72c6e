"""Everything else that people are reached by, through apprise: one URL says what, where and who we are there."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import apprise

from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.model import Level
from opsctl.ports import Runner
from opsctl.settings.alerts import AppriseTable

TYPES = {
    Level.OK: apprise.NotifyType.SUCCESS,
    Level.UNKNOWN: apprise.NotifyType.WARNING,
    Level.WARNING: apprise.NotifyType.WARNING,
    Level.CRITICAL: apprise.NotifyType.FAILURE,
}
INCIDENTS = {"pagerduty": "action=map&dedup={}", "opsgenie": "action=map&alias={}"}
"""Services that have incidents: what makes the good news close what the bad news opened."""


class ByUrl:
    def __init__(self, table: AppriseTable, runner: Runner) -> None:  # noqa: ARG002 (every channel is given one)
        self._url = reveal(table, "url")
        # Captured, for what it would log is the address.
        with _said():
            is_known = apprise.Apprise().add(self._url)
        if not is_known:
            raise Undelivered("url: apprise knows no such address: the part before :// says the service",
                              is_permanent=True)  # fmt: skip

    def send(self, message: Message, *, reply_to: str = "") -> str:  # noqa: ARG002 (threads go by the URL)
        with _said() as string_io:
            service = apprise.Apprise()
            service.add(self._address(message))
            is_sent = service.notify(
                title=message.subject, body=message.body, notify_type=TYPES[message.level],
                body_format=apprise.NotifyFormat.TEXT,
            )  # fmt: skip
            why = " ".join(string_io.getvalue().split())
        if not is_sent:
            # Apprise says only that it failed, so that it may have been taken.
            raise Undelivered(mask(why or "apprise could not send it", [self._url]), is_ambiguous=True)
        return ""

    def _address(self, message: Message) -> str:
        scheme = self._url.partition("://")[0].lower()
        if scheme not in INCIDENTS:
            return self._url
        incident = message.root.rpartition(".")[0] or message.root
        return f"{self._url}{'&' if '?' in self._url else '?'}{INCIDENTS[scheme].format(incident)}"


@contextmanager
def _said() -> Iterator[io.StringIO]:
    """What apprise logs meanwhile, and nobody else gets to see."""
    logger = logging.getLogger("apprise")
    before, logger.propagate = logger.propagate, False
    try:
        with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as said:  # type: ignore[no-untyped-call] # apprise has no types there
            yield said
    finally:
        logger.propagate = before
