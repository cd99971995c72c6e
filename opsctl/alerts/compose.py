"""Turn the transitions of a watch cycle into messages for the outbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from opsctl.alerts import routes
from opsctl.alerts.ledger_state import AlertTransition, Batch, LedgerState, Thread
from opsctl.alerts.message import Message, render_single, render_storm
from opsctl.alerts.outbox import OutboxItem
from opsctl.settings.alerts import AlertSettings, ChannelTable

ScheduledChange = tuple[AlertTransition, datetime | None]
"""A transition and the end of the quiet hours that delay its message; None: send now."""


def compose_items(
    state: LedgerState, batch: Batch, rules: AlertSettings, channels: Mapping[str, ChannelTable]
) -> Iterator[OutboxItem]:
    """Return one item per transition and channel; a channel with `rules.storm` transitions or more gets one item.

    `state.threads` records the thread of each incident. The same batch always makes the same messages.
    """
    by_channel: dict[str, list[ScheduledChange]] = {}
    for change in batch.changes:
        thread = state.threads.get(change.incident)
        for channel, not_before in routes.find_destinations(change, rules, channels, thread).items():
            by_channel.setdefault(channel, []).append((change, not_before))
    for channel, scheduled in by_channel.items():
        if len(scheduled) >= rules.storm:
            yield _compose_storm(state, batch, channel, scheduled)
        else:
            for change, not_before in scheduled:
                yield _compose_single(state, batch, channel, change, not_before)


def _compose_single(
    state: LedgerState, batch: Batch, channel: str, change: AlertTransition, not_before: datetime | None
) -> OutboxItem:
    message = render_single(change, root=_find_root(state, change, channel))
    _record_thread(state, change, channel, message)
    return OutboxItem(message=message, channel=channel, number=batch.number, not_before=not_before)


def _compose_storm(state: LedgerState, batch: Batch, channel: str, scheduled: list[ScheduledChange]) -> OutboxItem:
    changes = [change for change, _ in scheduled]
    roots = {_find_root(state, change, channel) for change in changes}
    message = render_storm(batch, changes, root=roots.pop() if len(roots) == 1 else "")
    for change in changes:
        _record_thread(state, change, channel, message)
    not_before = routes.earliest(*(not_before for _, not_before in scheduled))
    return OutboxItem(message=message, channel=channel, number=batch.number, not_before=not_before)


def _find_root(state: LedgerState, change: AlertTransition, channel: str) -> str:
    thread = state.threads.get(change.incident)
    return thread.roots.get(channel, "") if thread else ""


def _record_thread(state: LedgerState, change: AlertTransition, channel: str, message: Message) -> None:
    thread = state.threads.get(change.incident, Thread(at=message.at, roots={}))
    state.threads[change.incident] = Thread(at=message.at, roots={channel: message.root, **thread.roots})
