"""The ways to people. Adding one is a file here, a line in CHANNELS and a table in opsctl/settings/alerts.py."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.errors import MissingPackage
from opsctl.extras import required
from opsctl.ports import Runner
from opsctl.settings.alerts import ChannelTable

CHANNELS: dict[str, str] = {
    "email": "opsctl.alerts.channels.email:Email",
    "slack": "opsctl.alerts.channels.slack:Slack",
    "apprise": "opsctl.alerts.channels.apprise_url:ByUrl",
    "file": "opsctl.alerts.channels.plain_text:ToFile",
    "stdout": "opsctl.alerts.channels.plain_text:ToStdout",
}
"""By kind: where it attempts. Imported when it is used, for some take long."""


class Channel(Protocol):
    def __init__(self, table: Any, runner: Runner) -> None: ...

    def send(self, message: Message, *, reply_to: str = "") -> str:
        """Deliver it: the name that the other side has given it, if it has names.

        `reply_to` is the name of the first message of its thread. Raises Undelivered, and says no secrets.
        """


def open_channel(table: ChannelTable, runner: Runner) -> Channel:
    """Nothing is sent yet. Raises Undelivered for a secret or a package that is missing, or an address that is none."""
    module, _, name = CHANNELS[table.kind].partition(":")
    try:
        with required("alerts"):
            make = getattr(importlib.import_module(module), name)
    except MissingPackage as error:
        raise Undelivered(f"{error.message}: {error.hint}", is_permanent=True) from error
    channel: Channel = make(table, runner)
    return channel
