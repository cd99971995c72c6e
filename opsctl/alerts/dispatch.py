"""From transitions to people: everything that a watch cycle, a cron tick and `opsctl alerts` need."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from opsctl.alerts import routes
from opsctl.alerts.channel_secrets import find_exposed, reveal
from opsctl.alerts.channels import Channel, open_channel
from opsctl.alerts.compose import compose_items
from opsctl.alerts.ledger import AlertLedger, summarize
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import GIVE_UP, Deliver, Delivery, GiveUp, Outbox, OutboxItem, Undelivered
from opsctl.errors import OpsctlError, RunDirError
from opsctl.model import Level
from opsctl.ports import Clock, Runner
from opsctl.settings.alerts import AlertSettings, ChannelTable
from opsctl.state.site_dir import SiteDir

LOST = "lost-"
"""How the ids of messages begin that tell of messages which nobody got."""
MOST_TOLD = 50
"""So many of them are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerting:
    """The alerts of one site."""

    rules: AlertSettings
    site: SiteDir
    spare: SiteDir
    """Carries on while `site` cannot be written."""
    clock: Clock
    runner: Runner

    @property
    def ledger(self) -> AlertLedger:
        return AlertLedger(self.site, self.clock, self.rules, self.spare)

    @property
    def channels(self) -> dict[str, ChannelTable]:
        return routes.select_channels(self.rules, self.site)

    @property
    def ledgers(self) -> tuple[AlertLedger, AlertLedger]:
        """That of the site, and the spare one."""
        return AlertLedger(self.site, self.clock, self.rules), AlertLedger(self.spare, self.clock, self.rules)

    @property
    def outboxes(self) -> tuple[Outbox, Outbox]:
        """That of the site, and the spare one."""
        note = self.ledger.write_down
        first, second = Outbox(self.site, self.clock, note), Outbox(self.spare, self.clock, note)
        return replace(first, elsewhere=second), replace(second, elsewhere=first)


def send_alerts(alerting: Alerting) -> list[Delivery]:
    """Tell people what the ledger has recorded, also what others recorded and did not get to tell; try what waits.

    Call it after `alerting.ledger.record(findings)`, in every cycle, whether or not that returned something. Takes
    some seconds for each channel that does not answer. Raises RunDirError if nothing can be written anywhere.
    """
    failed: list[RunDirError] = []
    for ledger, outbox in zip(alerting.ledgers, alerting.outboxes, strict=True):
        try:
            _hand_over(alerting, ledger, outbox)
        except RunDirError as error:
            failed.append(error)
    attempts = flush_outboxes(alerting)
    if failed and not alerting.ledgers[1].path.exists():
        raise failed[-1]
    return attempts


def flush_outboxes(alerting: Alerting) -> list[Delivery]:
    """Try again what waits and is due. Raises RunDirError if nothing can be noted anywhere."""
    first, spare = alerting.outboxes
    attempts = []
    for channel in _queues(alerting, first):
        try:
            attempts += _flush(alerting, first, channel)
        except RunDirError:
            # Sent from there without a note of it, it would be sent again and again.
            for item in first.waiting():
                if item.channel == channel:
                    spare.put(item)
    for channel in _queues(alerting, spare):
        attempts += _flush(alerting, spare, channel)
    return attempts


def ping(alerting: Alerting) -> None:
    """Tell the dead-man's switch that a cycle was complete. Call it only then. Raises OpsctlError if it is not told."""
    from opsctl.alerts.channels.heartbeat_url import fetch  # noqa: PLC0415 (for those who have one)

    if url := reveal(alerting.rules, "ping_url"):
        fetch(url)


def check_ping(alerting: Alerting) -> bool:
    """Whether there is a dead-man's switch. Raises Undelivered if its address cannot be had or is none."""
    from opsctl.alerts.channels.heartbeat_url import check  # noqa: PLC0415 (for those who have one)

    if not (url := reveal(alerting.rules, "ping_url")):
        return False
    check(url)
    return True


def list_undelivered(alerting: Alerting) -> list[OutboxItem]:
    """What waits in the outboxes, the oldest first."""
    return [item for outbox in alerting.outboxes for item in outbox.waiting()]


def list_abandoned(alerting: Alerting) -> list[OutboxItem]:
    """What was set aside undelivered, the oldest first."""
    return [item for outbox in alerting.outboxes for item in outbox.abandoned()]


def check(alerting: Alerting) -> Iterator[tuple[str, Undelivered | None]]:
    """Whether each channel could be used, as far as that can be told without sending: its name, and what is wrong."""
    for name, table in alerting.channels.items():
        try:
            open_channel(table, alerting.runner)
        except Undelivered as error:
            yield name, error
        else:
            yield name, None


def find_exposed_secrets(alerting: Alerting) -> Iterator[tuple[str, Path]]:
    """The files of secrets that others can read, each once, with a setting that names it."""
    tables = {"alerts": alerting.rules} | {
        f"alerts.channels.{name}": channel_table for name, channel_table in alerting.channels.items()
    }
    found = {path: f"{place}.{field}" for place, table in tables.items() for field, path in find_exposed(table)}
    return ((place, path) for path, place in found.items())


def test(alerting: Alerting) -> Iterator[tuple[str, Undelivered | None]]:
    """Send a message through every channel, now: each channel's name and how it failed, if it did."""
    with contextlib.suppress(RunDirError):
        alerting.site.create()  # the file that is there without any settings lies in it
    now = alerting.clock.now()
    for name, table in alerting.channels.items():
        message = Message(
            id=f"test-{uuid.uuid4().hex[:12]}", root="", at=now, level=Level.OK,
            subject=f"[opsctl] TEST: this is how alerts reach you by {name}",
            body="Nothing is wrong. Somebody typed `opsctl alerts test`.\n",
        )  # fmt: skip
        try:
            _send(partial(open_channel, table, alerting.runner), replace(message, root=message.id), "")
        except Undelivered as error:
            yield name, error
        else:
            yield name, None


def _hand_over(alerting: Alerting, ledger: AlertLedger, outbox: Outbox) -> None:
    """Put what is to be told into the outbox, then note that it is there. Done twice, it adds nothing."""
    if not ledger.read().pending:
        return
    with ledger.open() as state:
        for batch in state.pending:
            for noted in batch.noted:
                alerting.ledger.write_down("transition", **summarize(noted.transition))
            for item in compose_items(state, batch, alerting.rules, alerting.channels):
                outbox.put(item)
        state.pending = []


def _queues(alerting: Alerting, outbox: Outbox) -> Iterator[str]:
    """The channels that something waits for, also those that got it only as the fallback of an earlier one, and those
    that are no longer in the settings."""
    done: set[str] = set()
    while waiting := outbox.queues() - done:
        channel = next((name for name in alerting.channels if name in waiting), min(waiting))
        done.add(channel)
        yield channel


def _flush(alerting: Alerting, outbox: Outbox, channel: str) -> list[Delivery]:
    attempts = outbox.flush(channel, _deliver(alerting, channel), _give_up(alerting, outbox))
    gone = outbox.abandon(channel, attempts)
    if lost := [item for item in gone if not item.message.id.startswith(LOST)]:
        _notify_of_loss(alerting, outbox, channel, lost)
        outbox.set_aside(channel, gone)  # with what told of an earlier loss: the new message is there
    return attempts


def _notify_of_loss(alerting: Alerting, outbox: Outbox, channel: str, lost: Sequence[OutboxItem]) -> None:
    """By every other channel, or where there is none by this one, should it ever work again; once in a month."""
    now, days = alerting.clock.now(), GIVE_UP.days
    subjects = "".join(f"{item.message.at:%Y-%m-%d %H:%M} UTC  {item.message.subject}\n" for item in lost[:MOST_TOLD])
    more = f"and {len(lost) - MOST_TOLD} more\n" if len(lost) > MOST_TOLD else ""
    message = Message(
        id=(id := f"{LOST}{channel}-{now:%Y%m}"), root=id, at=now, level=Level.WARNING,
        subject=f"[opsctl] LOST: {channel} took no message for {days} days; what waited for so long is given up",
        body=f"{channel}: {lost[-1].error or 'no answer'}\n\n{subjects}{more}\nThey lie in {outbox.site.alerts}"
        f"/undelivered/{channel}, for a year. opsctl alerts test says whether {channel} works now.\n",
    )  # fmt: skip
    for name in [each for each in alerting.channels if each != channel] or [channel]:
        outbox.put(OutboxItem(message=message, channel=name, number=lost[-1].number))


def _deliver(alerting: Alerting, channel: str) -> Deliver:
    opened: list[Channel] = []

    def connect() -> Channel:
        if not opened:
            table = alerting.channels.get(channel)
            if table is None:
                raise Undelivered(f"there is no channel {channel!r} any more", is_permanent=True)
            opened.append(open_channel(table, alerting.runner))
        return opened[0]

    def deliver(item: OutboxItem) -> str:
        root = item.message.root
        names = (outbox.reference(channel, root) for outbox in alerting.outboxes)
        return _send(connect, item.message, next(filter(None, names), "") if root != item.message.id else "")

    return deliver


def _send(connect: Callable[[], Channel], message: Message, reply_to: str) -> str:
    try:
        return connect().send(message, reply_to=reply_to)
    except Undelivered:
        raise
    except OpsctlError as error:
        raise Undelivered(error.message) from error
    except Exception as error:
        # No reason to lose a message, nor to hold up the others. What it says might hold secrets.
        why = f"a bug in this channel: {type(error).__name__}"
        raise Undelivered(why, is_permanent=True, is_ambiguous=True) from error


def _give_up(alerting: Alerting, outbox: Outbox) -> GiveUp:
    def give_up(item: OutboxItem) -> str:
        age = alerting.clock.now() - (item.not_before or item.message.at)
        if not item.is_refused and age < timedelta(hours=alerting.rules.fallback_hours):
            return ""
        known = alerting.channels
        has_it = [name for name in known if outbox.knows(replace(item, channel=name))]
        instead = routes.find_fallback(alerting.rules, known, item.channel, has_it)
        if instead is None:
            return ""
        fresh = replace(item, attempts=0, next_attempt=None, asked_until=None, is_refused=False, error="")
        outbox.put(replace(fresh, channel=instead))
        alerting.ledger.write_down("fallback", channel=item.channel, id=item.message.id, by=instead, why=item.error)
        return instead

    return give_up
