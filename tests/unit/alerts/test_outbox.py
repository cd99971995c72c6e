"""Undelivered messages: order, retries, and no duplicates."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from opsctl.alerts.message import Message
from opsctl.alerts.outbox import MAX_WAIT, MIN_TRIES_BEFORE_ABANDON, Outbox, Undelivered
from opsctl.alerts.outbox_item import OutboxItem
from opsctl.base.findings import Severity
from opsctl.state.lease import lease
from tests.unit.alerts.conftest import Clock


class FakeChannel:
    """An outbox, and a channel that raises the errors of `failures`."""

    def __init__(self, site, clock):
        self.clock, self.journal, self.sent, self.failures = clock, [], [], {}
        self.instead = ""
        self.outbox = Outbox(site, clock, lambda kind, **data: self.journal.append(kind))

    def put(self, number, ident, root="", severity=Severity.CRITICAL):
        at, root = self.clock.now(), root or ident
        message = Message(id=ident, root=root, at=at, severity=severity, subject=ident, body="")
        self.outbox.put(OutboxItem(message=message, channel="mail", number=number))

    def deliver(self, item):
        error = self.failures.get(item.message.id) or self.failures.get("all")
        if error:
            raise error
        self.sent.append(item.message.id)
        return f"name-of-{item.message.id}"

    def flush(self):
        return self.outbox.flush("mail", self.deliver, lambda item: self.instead)

    @property
    def waiting(self):
        return [item.message.id for item in self.outbox.waiting()]


@pytest.fixture
def channel(world):
    world.site.create()
    return FakeChannel(world.site, world.clock)


DOWN = Undelivered("down")
REFUSED = Undelivered("no such mailbox", is_permanent=True)


def test_message_is_delivered_once(channel):
    channel.put(1, "a.1")
    channel.flush()
    channel.flush()
    assert (channel.sent, channel.waiting, channel.journal) == (["a.1"], [], ["delivered"])


def test_delivered_message_is_not_sent_again(channel):
    channel.put(1, "a.1")
    channel.flush()
    channel.put(1, "a.1")
    channel.flush()
    assert channel.sent == ["a.1"]


def test_batches_are_sent_in_order_despite_clocks(channel):
    channel.put(1, "z.1")
    channel.clock.forward(seconds=-90)
    channel.put(2, "a.2")
    channel.put(10, "m.3")
    channel.flush()
    assert channel.sent == ["z.1", "a.2", "m.3"]


def test_retry_delay_grows_to_an_hour(channel):
    channel.put(1, "a.1")
    channel.failures["all"] = DOWN
    delays = []
    for _ in range(10):
        channel.flush()
        [item] = channel.outbox.waiting()
        delays.append((item.next_try - channel.clock.now()).total_seconds())
        channel.clock.at = item.next_try
    assert delays == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_retry_waits_for_its_time(channel):
    channel.put(1, "a.1")
    channel.failures["all"] = DOWN
    channel.flush()
    assert channel.flush() == []


def test_channel_may_request_a_delay(channel):
    channel.put(1, "a.1")
    channel.failures["all"] = Undelivered("429", retry_after=900)
    channel.flush()
    assert channel.outbox.waiting()[0].next_try == channel.clock.now() + timedelta(seconds=900)


def test_requested_delay_applies_to_later_messages(channel):
    for n in range(3):
        channel.put(n, f"{n}.1")
    channel.failures["all"] = Undelivered("429", retry_after=900)
    assert len(channel.flush()) == 1
    channel.failures.clear()
    channel.put(3, "3.1")
    channel.clock.forward(seconds=899)
    assert channel.flush() == []
    channel.clock.forward(seconds=1)
    channel.flush()
    assert channel.sent == ["0.1", "1.1", "2.1", "3.1"]


@pytest.mark.parametrize("seconds", [1e9, 1e20, float("inf")])
def test_requested_delay_is_bounded(channel, seconds):
    channel.put(1, "a.1")
    channel.failures["all"] = Undelivered("429", retry_after=seconds)
    channel.flush()
    assert channel.outbox.waiting()[0].next_try < channel.clock.now() + 2 * MAX_WAIT


def test_failing_channel_is_tried_twice_a_cycle(channel):
    for n in range(50):
        channel.put(n, f"{n}.1")
    channel.failures["all"] = DOWN
    assert len(channel.flush()) == 2


def test_recovered_channel_gets_all_messages(channel):
    for n in range(5):
        channel.put(n, f"{n}.1")
    channel.failures["all"] = DOWN
    channel.flush()
    channel.failures.clear()
    channel.clock.forward(seconds=30)
    channel.flush()
    assert channel.sent == [f"{n}.1" for n in range(5)]


def test_failing_message_does_not_block_the_others(channel):
    channel.put(1, "poison.1")
    channel.put(2, "b.1")
    channel.failures["poison.1"] = DOWN
    channel.flush()
    assert channel.sent == ["b.1"]


def test_recovery_is_sent_after_its_alert(channel):
    channel.put(1, "a.1")
    channel.put(2, "a.2", root="a.1")
    channel.failures["a.1"] = DOWN
    channel.flush()
    assert channel.sent == []
    channel.failures.clear()
    channel.clock.forward(minutes=1)
    channel.flush()
    assert channel.sent == ["a.1", "a.2"]


def test_refused_message_is_retried_hourly(channel):
    channel.put(1, "a.1")
    channel.put(2, "b.1")
    channel.failures["a.1"] = REFUSED
    channel.flush()
    assert (channel.sent, channel.waiting) == (["b.1"], ["a.1"])
    channel.clock.forward(minutes=59)
    assert channel.flush() == []
    channel.failures.clear()
    channel.clock.forward(minutes=2)
    channel.flush()
    assert channel.sent == ["b.1", "a.1"]


def test_many_refused_messages_do_not_block_others(channel):
    for n in range(5):
        channel.put(n, f"{n}.1")
        channel.failures[f"{n}.1"] = REFUSED
    channel.put(9, "good.1")
    channel.flush()
    assert channel.sent == ["good.1"]


def test_ambiguous_delivery_is_journalled_and_retried(channel):
    channel.put(1, "a.1")
    channel.failures["a.1"] = Undelivered("cut off", is_ambiguous=True)
    channel.flush()
    channel.failures.clear()
    channel.clock.forward(minutes=1)
    channel.flush()
    assert channel.journal == ["ambiguous", "delivered"]


def test_interrupted_delivery_is_journalled_and_retried(channel):
    channel.put(1, "a.1")

    def die(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        channel.outbox.flush("mail", die, lambda item: "")
    channel.flush()
    assert (channel.sent, channel.journal) == (["a.1"], ["ambiguous", "delivered"])


def test_queue_is_delivered_by_a_single_process(channel):
    channel.put(1, "a.1")
    with lease(channel.outbox.queue("mail"), Clock()):
        assert channel.flush() == []
    assert channel.waiting == ["a.1"]


@pytest.mark.parametrize("first", ["site", "spare"])
def test_item_in_both_outboxes_is_sent_once(world, first):
    world.site.create()
    channels = {name: FakeChannel(getattr(world, name), world.clock) for name in ("site", "spare")}
    first_channel, second_channel = (channels.pop(first), *channels.values())
    first_channel.outbox, second_channel.outbox = (
        replace(first_channel.outbox, other=second_channel.outbox),
        replace(second_channel.outbox, other=first_channel.outbox),
    )
    for channel in (first_channel, second_channel):
        channel.put(1, "a.1")

    def flush_other(item):
        second_channel.flush()
        return first_channel.deliver(item)

    first_channel.outbox.flush("mail", flush_other, lambda item: "")
    second_channel.flush()
    assert (first_channel.sent, second_channel.sent) == (["a.1"], [])
    assert (first_channel.waiting, second_channel.waiting) == ([], [])


def test_lost_lease_stops_delivery(channel):
    channel.put(1, "a.1")
    channel.put(2, "b.1")
    lock = channel.outbox.queue("mail") / ".lease"

    def steal_lease(item):
        lock.unlink()
        lock.write_text("the lease of another host, which broke the stale one")
        return channel.deliver(item)

    attempts = channel.outbox.flush("mail", steal_lease, lambda item: "")
    assert (len(attempts), channel.sent, channel.waiting) == (1, ["a.1"], ["b.1"])


def test_item_delivered_by_the_fallback_is_done(channel):
    channel.put(1, "a.1")
    channel.failures["a.1"], channel.instead = REFUSED, "team"
    channel.flush()
    [item] = channel.outbox.waiting()
    assert item.fallback == "team"
    delivered = channel.outbox.delivered("team")
    delivered.mkdir(parents=True)
    (delivered / item.name).write_text("{}")
    channel.flush()
    assert (channel.waiting, channel.sent) == ([], [])


def test_items_behind_a_failure_go_to_the_fallback(channel):
    for n in range(5):
        channel.put(n, f"{n}.1")
    channel.failures["all"], channel.instead = DOWN, "team"
    channel.flush()
    assert [item.fallback for item in channel.outbox.waiting()] == ["team"] * 5


@pytest.mark.parametrize("hours", [1, 9600])
@pytest.mark.parametrize("retry_after_s", [0, 3000])
def test_clock_that_was_ahead_delays_nothing(channel, hours, retry_after_s):
    channel.clock.forward(hours=hours)
    channel.put(1, "a.1")
    channel.failures["all"] = Undelivered("down", retry_after=retry_after_s)
    channel.flush()
    channel.clock.forward(hours=-hours)
    channel.failures.clear()
    channel.flush()
    assert channel.sent == ["a.1"]


def test_invalid_file_in_the_queue_is_skipped(channel):
    channel.put(1, "a.1")
    (channel.outbox.queue("mail") / "00000000~x.json").write_bytes(b"\xff{")
    channel.flush()
    assert channel.sent == ["a.1"]


def test_reference_of_the_channel_is_stored(channel):
    channel.put(1, "a.1")
    channel.flush()
    assert channel.outbox.reference("mail", "a.1") == "name-of-a.1"
    assert channel.outbox.reference("mail", "a.2") == ""


def test_item_from_before_severities_is_read(channel):
    channel.put(1, "a.1")
    [path] = channel.outbox.queue("mail").iterdir()
    path.write_text(path.read_text().replace('"severity"', '"level"'))
    assert [item.message.severity for item in channel.outbox.waiting()] == [Severity.CRITICAL]


def test_queued_item_is_readable_json(channel):
    channel.put(1, "a.1")
    [path] = channel.outbox.queue("mail").glob("*.json")
    assert json.loads(path.read_text())["message"]["subject"] == "a.1"


def test_working_channel_expires_nothing(channel):
    channel.put(1, "a.1")
    channel.clock.forward(days=31)
    channel.failures["a.1"] = DOWN
    for _ in range(MIN_TRIES_BEFORE_ABANDON):
        channel.clock.forward(hours=1)
        attempts = channel.flush()
    (expired,) = channel.outbox.find_expired("mail", attempts)
    assert expired.message.id == "a.1"
    channel.clock.forward(hours=1)
    channel.put(2, "b.1")
    attempts = channel.flush()
    assert [attempt.error for attempt in attempts] == [DOWN, None]
    assert channel.outbox.find_expired("mail", attempts) == []
    assert channel.outbox.find_expired("mail", []) == []
    channel.clock.forward(hours=1)
    channel.failures["a.1"] = Undelivered("later", retry_after=60)
    assert channel.outbox.find_expired("mail", channel.flush()) == []


def test_critical_thread_is_sent_before_older_warnings(channel):
    channel.put(1, "a.1", severity=Severity.WARNING)
    channel.put(2, "b.1")
    channel.put(3, "b.2", root="b.1", severity=Severity.OK)
    channel.flush()
    assert channel.sent == ["b.1", "b.2", "a.1"]


def test_items_of_both_outboxes_are_sent_in_order(world):
    """The alert waits in the spare outbox, its end in the site's."""
    main, spare = (FakeChannel(site, world.clock) for site in (world.site, world.spare))
    main.outbox, spare.outbox = replace(main.outbox, other=spare.outbox), replace(spare.outbox, other=main.outbox)
    spare.put(1, "a.1")
    main.put(2, "a.2")
    main.outbox.take_over("mail")
    main.flush()
    assert (main.sent, spare.waiting) == (["a.1", "a.2"], [])
