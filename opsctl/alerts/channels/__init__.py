"""Channels. A new channel needs a module here, a line in CHANNELS and a table in opsctl/settings/alerts.py."""

import importlib
from typing import Any, Protocol

from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.errors import MissingPackage
from opsctl.base.extras import required
from opsctl.base.ports import Runner
from opsctl.settings.alert_channels import ChannelTable

CHANNELS: dict[str, str] = {
    "email": "opsctl.alerts.channels.email:Email",
    "slack": "opsctl.alerts.channels.slack:Slack",
    "apprise": "opsctl.alerts.channels.apprise_url:ByUrl",
    "ntfy": "opsctl.alerts.channels.ntfy:Ntfy",
    "webhook": "opsctl.alerts.channels.webhook:Webhook",
    "file": "opsctl.alerts.channels.plain_text:ToFile",
    "stdout": "opsctl.alerts.channels.plain_text:ToStdout",
}
"""Module and class of each kind, imported on first use: some imports are slow."""


class Channel(Protocol):
    def __init__(self, table: Any, runner: Runner) -> None: ...

    def send(self, message: Message, *, reply_to: str = "") -> str:
        """Deliver `message` and return the channel's own name for the message, empty if the channel has none.

        `reply_to` is that name for the first message of the thread. Raises Undelivered without secrets in the text.
        """


def open_channel(table: ChannelTable, runner: Runner) -> Channel:
    """Open a channel without sending. Raises Undelivered for a missing secret or package, or an invalid address."""
    module, _, name = CHANNELS[table.kind].partition(":")
    try:
        with required("alerts"):
            make = getattr(importlib.import_module(module), name)
    except MissingPackage as error:
        raise Undelivered(f"{error.message}: {error.hint}", is_permanent=True) from error
    channel: Channel = make(table, runner)
    return channel
