"""Turn the transitions of a watch cycle into messages for the outbox."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial

from opsctl.alerts import routes
from opsctl.alerts.ledger_state import AlertTransition, Batch, LedgerState, Thread
from opsctl.alerts.message import Message, render_group, render_single, render_storm
from opsctl.alerts.outbox_item import OutboxItem
from opsctl.base.findings import Level
from opsctl.settings.alert_channels import ChannelTable
from opsctl.settings.alerts import AlertSettings

ScheduledChange = tuple[AlertTransition, datetime | None]
"""A transition and the end of the quiet hours that delay its message; None: send now."""


def compose_items(
    state: LedgerState, batch: Batch, rules: AlertSettings, channels: Mapping[str, ChannelTable]
) -> Iterator[OutboxItem]:
    """Return one item per train and channel; a channel with `rules.storm` transitions or more gets one item.

    `state.threads` records the thread of each incident. The same batch always makes the same messages.
    """
    by_channel: dict[str, list[ScheduledChange]] = {}
    for change in batch.changes:
        thread = state.threads.get(change.incident)
        for channel, not_before in routes.find_destinations(change, rules, channels, thread).items():
            by_channel.setdefault(channel, []).append((change, not_before))
    for channel, scheduled in by_channel.items():
        if len(scheduled) >= rules.storm:
            yield _compose(state, batch, channel, scheduled, partial(render_storm, batch, rules=rules))
            continue
        for group in _group_by_train(state, channel, scheduled):
            yield _compose(state, batch, channel, group, partial(_render_few, batch, rules=rules))


def _group_by_train(
    state: LedgerState, channel: str, scheduled: list[ScheduledChange]
) -> Iterable[list[ScheduledChange]]:
    """Group the changes of a train that begin together, or end together what one message began."""
    groups: dict[tuple[str, ...], list[ScheduledChange]] = {}
    for change, not_before in scheduled:
        train, id = change.transition.finding.train, change.transition.id
        word = "over" if change.transition.finding.level is Level.OK else "open"
        key = (train, _find_root(state, change, channel), word) if train and not change.to else (id,)
        groups.setdefault(key, []).append((change, not_before))
    return groups.values()


def _render_few(batch: Batch, changes: Sequence[AlertTransition], *, rules: AlertSettings, root: str) -> Message:
    if len(changes) == 1:
        return render_single(changes[0], rules, root=root)
    return render_group(batch, changes, rules, root=root)


def _compose(
    state: LedgerState, batch: Batch, channel: str, scheduled: list[ScheduledChange], render: Callable[..., Message]
) -> OutboxItem:
    changes = [change for change, _ in scheduled]
    roots = {_find_root(state, change, channel) for change in changes}
    message = render(changes, root=roots.pop() if len(roots) == 1 else "")
    for change in changes:
        _record_thread(state, change, channel, message)
    not_before = routes.earliest(*(not_before for _, not_before in scheduled))
    return OutboxItem(message=message, channel=channel, number=batch.number, not_before=not_before)


def _find_root(state: LedgerState, change: AlertTransition, channel: str) -> str:
    thread = state.threads.get(change.incident)
    return thread.roots.get(channel, "") if thread else ""


def _record_thread(state: LedgerState, change: AlertTransition, channel: str, message: Message) -> None:
    thread = state.threads.get(change.incident, Thread(at=message.at, roots={}))
    state.threads[change.incident] = Thread(
        at=message.at,
        roots={channel: message.root, **thread.roots},
        levels={**thread.levels, channel: change.transition.finding.level},
    )
