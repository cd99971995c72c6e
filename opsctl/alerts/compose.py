"""From what one look changed to the items that go into the outbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from opsctl.alerts import routes
from opsctl.alerts.ledger_state import Batch, Noted, State, Thread
from opsctl.alerts.message import Message, single, storm
from opsctl.alerts.outbox import Item
from opsctl.settings.alerts import AlertSite, ChannelTable

Row = tuple[Noted, datetime | None]
"""Something to tell, and not before when."""


def items(state: State, batch: Batch, rules: AlertSite, channels: Mapping[str, ChannelTable]) -> Iterator[Item]:
    """One item for each change and channel; a channel that would get a storm of them gets one for all.

    `state` remembers in which thread each incident is told. The same batch always makes the same messages.
    """
    by_channel: dict[str, list[Row]] = {}
    for noted in batch.noted:
        for channel, when in routes.destinations(noted, rules, channels, state.threads.get(noted.incident)).items():
            by_channel.setdefault(channel, []).append((noted, when))
    for channel, rows in by_channel.items():
        if len(rows) >= rules.storm:
            yield _together(state, batch, channel, rows)
        else:
            yield from (_alone(state, batch, channel, row) for row in rows)


def _alone(state: State, batch: Batch, channel: str, row: Row) -> Item:
    noted, when = row
    message = single(noted, root=_root(state, noted, channel))
    _remember(state, noted, channel, message)
    return Item(message=message, channel=channel, number=batch.number, not_before=when)


def _together(state: State, batch: Batch, channel: str, rows: list[Row]) -> Item:
    roots = {_root(state, noted, channel) for noted, _ in rows}
    message = storm(batch, [noted for noted, _ in rows], root=roots.pop() if len(roots) == 1 else "")
    for noted, _ in rows:
        _remember(state, noted, channel, message)
    return Item(
        message=message, channel=channel, number=batch.number, not_before=routes.sooner(*(when for _, when in rows))
    )


def _root(state: State, noted: Noted, channel: str) -> str:
    thread = state.threads.get(noted.incident)
    return thread.roots.get(channel, "") if thread else ""


def _remember(state: State, noted: Noted, channel: str, message: Message) -> None:
    thread = state.threads.get(noted.incident, Thread(at=message.at, roots={}))
    state.threads[noted.incident] = Thread(at=message.at, roots={channel: message.root, **thread.roots})
