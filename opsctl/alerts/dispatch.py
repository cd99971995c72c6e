"""Send alerts: the operations of a watch cycle, a cron tick and `opsctl alerts`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from opsctl.alerts import routes
from opsctl.alerts.channel_secrets import find_exposed, reveal
from opsctl.alerts.channels import Channel, heartbeat_url, open_channel
from opsctl.alerts.channels.heartbeat_url import PingKind
from opsctl.alerts.channels.webhook import parse_setting
from opsctl.alerts.ledger import AlertLedger, summarize
from opsctl.alerts.message import Message, make_message
from opsctl.alerts.outbox import ABANDON_AFTER, ChooseFallback, Deliver, Delivery, Outbox, Undelivered
from opsctl.alerts.outbox_item import OutboxItem
from opsctl.alerts.senders import Refill, Senders
from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.base.findings import Severity
from opsctl.base.ports import Clock, Runner
from opsctl.settings.alert_channels import ChannelTable, FileTable
from opsctl.settings.alerts import AlertSettings
from opsctl.state.site_dir import SiteDir

ABANDONED_ID_PREFIX = "lost-"
"""Start of the ids of messages that report abandoned deliveries."""
MAX_SUBJECTS_LISTED = 50
"""Such a message lists at most this many subjects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerting:
    rules: AlertSettings
    site: SiteDir
    spare: SiteDir
    """Takes over while `site` cannot be written."""
    clock: Clock
    runner: Runner
    site_problem: str = ""
    """Why the site directory below the root is not used, and `site` is the user's own; empty otherwise."""

    @property
    def ledger(self) -> AlertLedger:
        return AlertLedger(self.site, self.clock, self.rules, self.spare)

    @property
    def channels(self) -> dict[str, ChannelTable]:
        built_in = FileTable(kind="file", path=str(self.site.alerts / "alerts.log"))
        return dict(self.rules.channels) or {routes.BUILT_IN: built_in}

    @property
    def outboxes(self) -> tuple[Outbox, Outbox]:
        """The site's outbox and the spare outbox."""
        journal = self.ledger.journal
        main, spare = Outbox(self.site, self.clock, journal), Outbox(self.spare, self.clock, journal)
        return replace(main, other=spare), replace(spare, other=main)


def send_alerts(alerting: Alerting, senders: Senders | None = None, *, wait_s: float | None = None) -> list[Delivery]:
    """Send the pending transitions of the ledgers, also those recorded by other processes; retry due messages.

    Call `send_alerts` after `alerting.ledger.record(findings)` in every cycle, with or without new transitions. Every
    channel sends in a thread of `senders`. After `wait_s` seconds the slow channels continue in their threads, and
    their deliveries are returned by a later call with the same `senders`. Raises RunDirError if neither directory can
    be written.
    """
    failed: RunDirError | None = None
    try:
        _enqueue_pending(alerting)
    except RunDirError as error:
        failed = error
    senders = senders or Senders(alerting.clock)
    senders.start(_list_queues(alerting), partial(_flush_channel, alerting, senders))
    senders.wait(wait_s)
    deliveries = senders.collect()
    if failed:
        raise failed
    return deliveries


def _list_queues(alerting: Alerting) -> list[str]:
    """Return the channels with waiting messages: those of the settings in their order, then removed ones."""
    waiting = set().union(*(outbox.queues() for outbox in alerting.outboxes))
    return [*(name for name in alerting.channels if name in waiting), *sorted(waiting - set(alerting.channels))]


def _flush_channel(alerting: Alerting, senders: Senders, channel: str, refill: Refill) -> list[Delivery]:
    """Deliver the due messages of `channel` in both outboxes. Raises RunDirError if neither outbox can be written."""
    main, spare = (replace(outbox, unrecorded=senders.unrecorded) for outbox in alerting.outboxes)
    deliveries = []
    try:
        main.take_over(channel)
        deliveries += _flush(alerting, main, channel, refill)
    except RunDirError:
        # A delivery that cannot be recorded would be repeated for ever: move the messages to the spare outbox.
        spare.take_over(channel)
    return deliveries + _flush(alerting, spare, channel, refill)


def ping(alerting: Alerting, kind: PingKind = PingKind.SUCCESS, text: str = "") -> None:
    """Ping the dead-man's switch. Raises OpsctlError if the ping fails.

    In the plain style, only the success of a complete cycle is sent, without the text.
    """
    is_plain = alerting.rules.ping_style == "plain"
    if (kind is PingKind.SUCCESS or not is_plain) and (url := reveal(alerting.rules, "ping_url")):
        heartbeat_url.fetch(url, kind, "" if is_plain else text)


def ping_train(alerting: Alerting, train: str, kind: PingKind, text: str) -> None:
    """Ping the dead-man's switch of one train. Raises OpsctlError if the ping fails."""
    if url := reveal(alerting.rules, "ping_train_url"):
        heartbeat_url.fetch(url.replace("{train}", quote(train, safe="")), kind, text)


def check_ping(alerting: Alerting) -> bool:
    """Return whether a dead-man's switch is configured. Raises Undelivered for a missing or invalid address."""
    urls = [reveal(alerting.rules, field) for field in ("ping_url", "ping_train_url")]
    for url in filter(None, urls):
        parse_setting("ping_url", url)
    return any(urls)


def list_undelivered(alerting: Alerting) -> list[OutboxItem]:
    """Return the waiting items of both outboxes, the oldest first."""
    return list(chain.from_iterable(outbox.waiting() for outbox in alerting.outboxes))


def list_abandoned(alerting: Alerting) -> list[OutboxItem]:
    """Return the abandoned items of both outboxes, the oldest first."""
    return list(chain.from_iterable(outbox.abandoned() for outbox in alerting.outboxes))


def check(alerting: Alerting) -> Iterator[tuple[str, Undelivered | None]]:
    """Open every channel without sending; return pairs of channel name and error, None if there is no error."""
    for name, table in alerting.channels.items():
        yield name, _catch(partial(open_channel, table, alerting.runner))


def find_exposed_secrets(alerting: Alerting) -> Iterator[tuple[str, Path]]:
    """Return the secret files that other users can read, each file once, as pairs of setting and path."""
    settings: dict[Path, str] = {path: f"alerts.{field}" for field, path in find_exposed(alerting.rules)}
    for name, table in alerting.channels.items():
        settings |= {path: f"alerts.channels.{name}.{field}" for field, path in find_exposed(table)}
    return ((setting, path) for path, setting in settings.items())


def test(alerting: Alerting) -> Iterator[tuple[str, Undelivered | None]]:
    """Send a test message through every channel; return pairs of channel name and error, None if delivered."""
    with contextlib.suppress(RunDirError):
        alerting.site.create()  # the built-in channel writes to a file in this directory
    body = "Nothing is wrong. A person ran `opsctl alerts test`.\n"
    for name in alerting.channels:
        subject = f"[{alerting.rules.site_name}] TEST: alerts reach you by {name}"
        yield from send_now(alerting, [name], make_message("test", subject, body, alerting.clock.now()))


def send_now(alerting: Alerting, channels: Sequence[str], message: Message) -> Iterator[tuple[str, Undelivered | None]]:
    """Send `message` once to each channel, not by the outbox; return pairs of channel name and error."""
    for name in channels:
        connect = partial(open_channel, alerting.channels[name], alerting.runner)
        yield name, _catch(partial(_send, connect, message, ""))


def _catch(work: Callable[[], object]) -> Undelivered | None:
    try:
        work()
    except Undelivered as error:
        return error
    return None


def enqueue(alerting: Alerting, item: OutboxItem) -> None:
    """Put `item` into the site's outbox, or else into the spare one. Raises RunDirError if neither can be written."""
    main, spare = alerting.outboxes
    try:
        main.put(item)
    except RunDirError:
        spare.put(item)


def _enqueue_pending(alerting: Alerting) -> None:
    """Move the ledger's pending transitions into the outbox. Idempotent."""
    ledger = alerting.ledger
    if not ledger.read().pending:
        return
    with ledger.open() as state:
        for batch in state.pending:
            for change in batch.changes:
                ledger.journal("transition", **summarize(change.transition))
            for item in routes.compose_items(state, batch, alerting.rules, alerting.channels):
                enqueue(alerting, item)
        state.pending = []


def _flush(alerting: Alerting, outbox: Outbox, channel: str, refill: Refill) -> list[Delivery]:
    deliveries = outbox.flush(channel, _deliver(alerting, channel), _fallback_chooser(alerting, outbox, refill))
    expired = outbox.find_expired(channel, deliveries)
    if lost := [item for item in expired if not item.message.id.startswith(ABANDONED_ID_PREFIX)]:
        refill(_notify_of_loss(alerting, outbox, channel, lost))
        outbox.abandon(channel, expired)  # also earlier reports of abandoned deliveries: the new report replaces them
    return deliveries


def _notify_of_loss(alerting: Alerting, outbox: Outbox, channel: str, lost: Sequence[OutboxItem]) -> list[str]:
    """Report abandoned deliveries to every other channel, at most once a month; return these channels.

    Without another channel, the report waits for the dead channel itself.
    """
    now = alerting.clock.now()
    messages = [item.message for item in lost]
    subjects = [f"{message.at:%Y-%m-%d %H:%M} UTC  {message.subject}\n" for message in messages[:MAX_SUBJECTS_LISTED]]
    if len(lost) > MAX_SUBJECTS_LISTED:
        subjects.append(f"and {len(lost) - MAX_SUBJECTS_LISTED} more\n")
    id = f"{ABANDONED_ID_PREFIX}{channel}-{now:%Y%m}"
    message = Message(
        id=id,
        root=id,
        at=now,
        severity=Severity.WARNING,
        subject=f"[{alerting.rules.site_name}] LOST: delivery to {channel} abandoned after {ABANDON_AFTER.days} days",
        body=f"{channel}: {lost[-1].error or 'no answer'}\n\n{''.join(subjects)}\nThe messages are kept for a year in"
        f" {outbox.site.alerts}/undelivered/{channel}. Test the channel: opsctl alerts test\n",
    )
    names = [other for other in alerting.channels if other != channel] or [channel]
    for name in names:
        outbox.put(OutboxItem(message=message, channel=name, number=lost[-1].number))
    return names


def _deliver(alerting: Alerting, channel: str) -> Deliver:
    opened: list[Channel] = []

    def connect() -> Channel:
        if not opened:
            table = alerting.channels.get(channel)
            if table is None:
                raise Undelivered(f"channel {channel!r} is no longer in the settings", is_permanent=True)
            opened.append(open_channel(table, alerting.runner))
        return opened[0]

    def deliver(item: OutboxItem) -> str:
        root, reply_to = item.message.root, ""
        if root != item.message.id:
            references = (outbox.reference(channel, root) for outbox in alerting.outboxes)
            reply_to = next(filter(None, references), "")
        return _send(connect, item.message, reply_to)

    return deliver


def _send(connect: Callable[[], Channel], message: Message, reply_to: str) -> str:
    try:
        return connect().send(message, reply_to=reply_to)
    except Undelivered:
        raise
    except OpsctlError as error:
        raise Undelivered(error.message) from error
    except Exception as error:
        # A bug must not lose this message or delay the others. The error's text may contain secrets.
        why = f"bug in this channel: {type(error).__name__}"
        raise Undelivered(why, is_permanent=True, is_ambiguous=True) from error


def _fallback_chooser(alerting: Alerting, outbox: Outbox, refill: Refill) -> ChooseFallback:
    def choose_fallback(item: OutboxItem) -> str:
        age = alerting.clock.now() - (item.not_before or item.message.at)
        if not item.is_refused and age < timedelta(hours=alerting.rules.fallback_hours):
            return ""
        channels = alerting.channels
        tried = [name for name in channels if outbox.knows(replace(item, channel=name))]
        fallback = routes.find_fallback(alerting.rules, channels, item.channel, tried)
        if fallback is None:
            return ""
        fresh = replace(item, tries=0, next_try=None, retry_not_before=None, is_refused=False, error="")
        outbox.put(replace(fresh, channel=fallback))
        alerting.ledger.journal("fallback", channel=item.channel, id=item.message.id, by=fallback, why=item.error)
        refill([fallback])
        return fallback

    return choose_fallback
