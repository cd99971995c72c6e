"""From what one look changed to the items that go into the outbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from opsctl.alerts import routes
from opsctl.alerts.ledger_state import AlertTransition, Batch, LedgerState, Thread
from opsctl.alerts.message import Message, render_single, render_storm
from opsctl.alerts.outbox import OutboxItem
from opsctl.settings.alerts import AlertSettings, ChannelTable

Row = tuple[AlertTransition, datetime | None]
"""Something to tell, and not before when."""


def compose_items(
    state: LedgerState, batch: Batch, rules: AlertSettings, channels: Mapping[str, ChannelTable]
) -> Iterator[OutboxItem]:
    """One item for each change and channel; a channel that would get a storm of them gets one for all.

    `state` remembers in which thread each incident is told. The same batch always makes the same messages.
    """
    by_channel: dict[str, list[Row]] = {}
    for noted in batch.noted:
        for channel, when in routes.find_destinations(
            noted, rules, channels, state.threads.get(noted.incident)
        ).items():
            by_channel.setdefault(channel, []).append((noted, when))
    for channel, rows in by_channel.items():
        if len(rows) >= rules.storm:
            yield _together(state, batch, channel, rows)
        else:
            yield from (_alone(state, batch, channel, row) for row in rows)


def _alone(state: LedgerState, batch: Batch, channel: str, row: Row) -> OutboxItem:
    noted, when = row
    message = render_single(noted, root=_root(state, noted, channel))
    _remember(state, noted, channel, message)
    return OutboxItem(message=message, channel=channel, number=batch.number, not_before=when)


def _together(state: LedgerState, batch: Batch, channel: str, rows: list[Row]) -> OutboxItem:
    roots = {_root(state, noted, channel) for noted, _ in rows}
    message = render_storm(batch, [noted for noted, _ in rows], root=roots.pop() if len(roots) == 1 else "")
    for noted, _ in rows:
        _remember(state, noted, channel, message)
    return OutboxItem(
        message=message, channel=channel, number=batch.number, not_before=routes.sooner(*(when for _, when in rows))
    )


def _root(state: LedgerState, noted: AlertTransition, channel: str) -> str:
    thread = state.threads.get(noted.incident)
    return thread.roots.get(channel, "") if thread else ""


def _remember(state: LedgerState, noted: AlertTransition, channel: str, message: Message) -> None:
    thread = state.threads.get(noted.incident, Thread(at=message.at, roots={}))
    state.threads[noted.incident] = Thread(at=message.at, roots={channel: message.root, **thread.roots})
