"""Routes: the channels that receive an alert, and when; the items of the outbox for the transitions of a cycle."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter
from zoneinfo import ZoneInfo

from opsctl.alerts.duty import expand_channels
from opsctl.alerts.ledger_state import AlertTransition, Batch, LedgerState, Thread
from opsctl.alerts.message import Message, render_group, render_single, render_storm
from opsctl.alerts.outbox_item import OutboxItem
from opsctl.base.findings import Finding, Severity, Transition
from opsctl.settings.alert_channels import ChannelTable
from opsctl.settings.alerts import AlertSettings, RouteTable
from opsctl.settings.field_types import parse_hours

BUILT_IN = "log"
"""Name of the channel of a site that configures none."""
ScheduledChange = tuple[AlertTransition, datetime | None]
"""A transition and the end of the quiet hours that delay its message; None: send now."""


def channels_of(finding: Finding, rules: AlertSettings) -> set[str]:
    """Return the channels that a new alert about `finding` reaches."""
    if not rules.routes:
        return set(rules.channels)
    new = Transition(id="", finding=finding, before=Severity.OK, at=datetime.min)  # noqa: DTZ901 (the time is not used)
    names: set[str] = set()
    for route in rules.routes:
        if _matches(route, new):
            names.update(route.channels)
    return names


def find_severity(transition: Transition) -> Severity:
    """Return the worse severity of before and after; UNKNOWN counts as WARNING.

    A RESOLVED message thus takes the same routes as the alert that it resolves.
    """
    worst = max(transition.before, transition.finding.severity, key=attrgetter("rank"))
    return Severity.CRITICAL if worst is Severity.CRITICAL else Severity.WARNING


def find_destinations(
    change: AlertTransition, rules: AlertSettings, channels: Iterable[str], thread: Thread | None
) -> dict[str, datetime | None]:
    """Return the channels that receive `change`, with the end of the quiet hours that delay the message.

    None means now. A channel that received the incident also receives the news that the incident gets better or is
    over, whatever the routes say.
    """
    names = list(channels)
    if change.to:
        return dict.fromkeys(name for name in expand_channels(change.to, rules, change.transition.at) if name in names)
    followers = [name for name in _find_followers(change.transition, thread) if name in names]
    if not rules.routes:
        return dict.fromkeys([*followers, *names])
    destinations: dict[str, datetime | None] = dict.fromkeys(followers)
    routed: dict[str, datetime | None] = {}
    for route in rules.routes:
        if _matches(route, change.transition):
            reached = expand_channels(route.channels, rules, change.transition.at)
            quiet_until = _find_quiet_end(route, change.transition, rules.time_zone)
            routed |= {name: earliest(quiet_until, routed.get(name, quiet_until)) for name in reached}
    return destinations | routed


def _find_followers(transition: Transition, thread: Thread | None) -> list[str]:
    """Return the channels of the thread whose last message reported a worse severity than the transition."""
    if thread is None:
        return []
    new = transition.finding.severity.rank
    return [name for name in thread.roots if new < thread.severities.get(name, transition.before).rank]


def find_fallback(rules: AlertSettings, channels: Iterable[str], failed: str, tried: Iterable[str]) -> str | None:
    """Return the channel to use instead of `failed`: the site's fallback, else the next channel not in `tried`."""
    candidates = [*filter(None, [rules.fallback]), *channels]
    return next((name for name in candidates if name not in {failed, *tried}), None)


def earliest(*times: datetime | None) -> datetime | None:
    """Return the earliest time; None means now and precedes every time."""
    return None if None in times else min(time for time in times if time)


def _matches(route: RouteTable, transition: Transition) -> bool:
    finding = transition.finding
    return (
        find_severity(transition).rank >= Severity(route.severity).rank
        and any(fnmatchcase(finding.train, pattern) for pattern in route.trains)
        and any(fnmatchcase(finding.key, pattern) for pattern in route.keys)
    )


def _find_quiet_end(route: RouteTable, transition: Transition, zone_name: str) -> datetime | None:
    """Return the end of the route's quiet hours; None outside them and for critical transitions."""
    if not route.quiet or find_severity(transition) is Severity.CRITICAL:
        return None
    begin, end = parse_hours(route.quiet)
    zone = ZoneInfo(zone_name) if zone_name else None
    local = transition.at.astimezone(zone)
    time = local.time()
    is_quiet = begin <= time < end if begin < end else time >= begin or time < end
    if not is_quiet:
        return None
    day = local.date() + timedelta(days=time >= end)
    # Without a zone, the machine's own zone applies; its offset may differ at the end: clocks change at night.
    return datetime.combine(day, end, tzinfo=zone).astimezone(transition.at.tzinfo)


def compose_items(
    state: LedgerState, batch: Batch, rules: AlertSettings, channels: Mapping[str, ChannelTable]
) -> Iterator[OutboxItem]:
    """Return one item per train and channel; a channel with `rules.storm` transitions or more gets one item.

    `state.threads` records the thread of each incident. The same batch always makes the same messages.
    """
    by_channel: dict[str, list[ScheduledChange]] = {}
    for change in batch.changes:
        thread = state.threads.get(change.incident)
        for channel, not_before in find_destinations(change, rules, channels, thread).items():
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
        word = "over" if change.transition.finding.is_ok else "open"
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
    not_before = earliest(*(not_before for _, not_before in scheduled))
    return OutboxItem(message=message, channel=channel, number=batch.number, not_before=not_before)


def _find_root(state: LedgerState, change: AlertTransition, channel: str) -> str:
    thread = state.threads.get(change.incident)
    return thread.roots.get(channel, "") if thread else ""


def _record_thread(state: LedgerState, change: AlertTransition, channel: str, message: Message) -> None:
    thread = state.threads.get(change.incident, Thread(at=message.at, roots={}))
    state.threads[change.incident] = Thread(
        at=message.at,
        roots={channel: message.root, **thread.roots},
        severities={**thread.severities, channel: change.transition.finding.severity},
    )
