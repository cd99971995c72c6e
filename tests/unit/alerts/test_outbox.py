"""Messages on their way: in order, again and again, and none twice."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from opsctl.alerts.message import Message
from opsctl.alerts.outbox import MAX_WAIT, MIN_TRIES_BEFORE_ABANDON, Outbox, OutboxItem, Undelivered
from opsctl.model import Level
from opsctl.state.lease import lease
from tests.unit.alerts.conftest import Clock


class Post:
    """An outbox, and a channel that fails as it is told."""

    def __init__(self, site, clock):
        self.clock, self.journal, self.sent, self.failures = clock, [], [], {}
        self.instead = ""
        self.outbox = Outbox(site, clock, lambda kind, **data: self.journal.append(kind))

    def put(self, number, ident, root=""):
        at, root = self.clock.now(), root or ident
        message = Message(id=ident, root=root, at=at, level=Level.CRITICAL, subject=ident, body="")
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
def post(world):
    world.site.create()
    return Post(world.site, world.clock)


DOWN = Undelivered("down")
REFUSED = Undelivered("no such mailbox", is_permanent=True)


def test_what_is_put_is_delivered_once(post):
    post.put(1, "a.1")
    post.flush()
    post.flush()
    assert (post.sent, post.waiting, post.journal) == (["a.1"], [], ["delivered"])


def test_what_was_delivered_can_be_put_again_and_is_not_sent_again(post):
    post.put(1, "a.1")
    post.flush()
    post.put(1, "a.1")
    post.flush()
    assert post.sent == ["a.1"]


def test_they_go_in_the_order_of_their_batches_whatever_the_clocks_say(post):
    post.put(1, "z.1")
    post.clock.forward(seconds=-90)
    post.put(2, "a.2")
    post.put(10, "m.3")
    post.flush()
    assert post.sent == ["z.1", "a.2", "m.3"]


def test_the_delay_grows_up_to_an_hour(post):
    post.put(1, "a.1")
    post.failures["all"] = DOWN
    delays = []
    for _ in range(10):
        post.flush()
        [item] = post.outbox.waiting()
        delays.append((item.next_try - post.clock.now()).total_seconds())
        post.clock.at = item.next_try
    assert delays == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_it_is_not_tried_before_its_time(post):
    post.put(1, "a.1")
    post.failures["all"] = DOWN
    post.flush()
    assert post.flush() == []


def test_the_other_side_can_ask_for_more_time(post):
    post.put(1, "a.1")
    post.failures["all"] = Undelivered("429", retry_after=900)
    post.flush()
    assert post.outbox.waiting()[0].next_try == post.clock.now() + timedelta(seconds=900)


def test_a_channel_that_asked_for_time_is_left_alone_also_by_what_comes_later(post):
    for n in range(3):
        post.put(n, f"{n}.1")
    post.failures["all"] = Undelivered("429", retry_after=900)
    assert len(post.flush()) == 1
    post.failures.clear()
    post.put(3, "3.1")
    post.clock.forward(seconds=899)
    assert post.flush() == []
    post.clock.forward(seconds=1)
    post.flush()
    assert post.sent == ["0.1", "1.1", "2.1", "3.1"]


@pytest.mark.parametrize("seconds", [1e9, 1e20, float("inf")])
def test_no_more_time_than_we_ever_wait(post, seconds):
    post.put(1, "a.1")
    post.failures["all"] = Undelivered("429", retry_after=seconds)
    post.flush()
    assert post.outbox.waiting()[0].next_try < post.clock.now() + 2 * MAX_WAIT


def test_a_channel_that_is_down_is_not_asked_fifty_times(post):
    for n in range(50):
        post.put(n, f"{n}.1")
    post.failures["all"] = DOWN
    assert len(post.flush()) == 2


def test_the_first_that_gets_through_is_followed_by_all_that_wait(post):
    for n in range(5):
        post.put(n, f"{n}.1")
    post.failures["all"] = DOWN
    post.flush()
    post.failures.clear()
    post.clock.forward(seconds=30)
    post.flush()
    assert post.sent == [f"{n}.1" for n in range(5)]


def test_one_that_always_fails_does_not_hold_up_the_others(post):
    post.put(1, "poison.1")
    post.put(2, "b.1")
    post.failures["poison.1"] = DOWN
    post.flush()
    assert post.sent == ["b.1"]


def test_good_news_does_not_come_before_the_bad(post):
    post.put(1, "a.1")
    post.put(2, "a.2", root="a.1")
    post.failures["a.1"] = DOWN
    post.flush()
    assert post.sent == []
    post.failures.clear()
    post.clock.forward(minutes=1)
    post.flush()
    assert post.sent == ["a.1", "a.2"]


def test_what_is_refused_is_tried_seldom_and_is_never_thrown_away(post):
    post.put(1, "a.1")
    post.put(2, "b.1")
    post.failures["a.1"] = REFUSED
    post.flush()
    assert (post.sent, post.waiting) == (["b.1"], ["a.1"])
    post.clock.forward(minutes=59)
    assert post.flush() == []
    post.failures.clear()
    post.clock.forward(minutes=2)
    post.flush()
    assert post.sent == ["b.1", "a.1"]


def test_however_many_are_refused_they_do_not_hold_up_the_others(post):
    for n in range(5):
        post.put(n, f"{n}.1")
        post.failures[f"{n}.1"] = REFUSED
    post.put(9, "good.1")
    post.flush()
    assert post.sent == ["good.1"]


def test_what_may_have_been_taken_is_journalled_and_sent_again(post):
    post.put(1, "a.1")
    post.failures["a.1"] = Undelivered("cut off", is_ambiguous=True)
    post.flush()
    post.failures.clear()
    post.clock.forward(minutes=1)
    post.flush()
    assert post.journal == ["ambiguous", "delivered"]


def test_an_attempt_whose_process_died_is_journalled_and_made_again(post):
    post.put(1, "a.1")

    def die(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        post.outbox.flush("mail", die, lambda item: "")
    post.flush()
    assert (post.sent, post.journal) == (["a.1"], ["ambiguous", "delivered"])


def test_two_do_not_deliver_at_once(post):
    post.put(1, "a.1")
    with lease(post.outbox.queue("mail"), Clock()):
        assert post.flush() == []
    assert post.waiting == ["a.1"]


@pytest.mark.parametrize("first", ["site", "spare"])
def test_two_do_not_deliver_the_same_out_of_both_outboxes_at_once(world, first):
    world.site.create()
    posts = {name: Post(getattr(world, name), world.clock) for name in ("site", "spare")}
    here, there = (posts.pop(first), *posts.values())
    here.outbox, there.outbox = (
        replace(here.outbox, other=there.outbox),
        replace(there.outbox, other=here.outbox),
    )
    for post in (here, there):
        post.put(1, "a.1")

    def meanwhile(item):
        there.flush()
        return here.deliver(item)

    here.outbox.flush("mail", meanwhile, lambda item: "")
    there.flush()
    assert (here.sent, there.sent, here.waiting, there.waiting) == (["a.1"], [], [], [])


def test_one_whose_lease_was_taken_stops_at_once(post):
    post.put(1, "a.1")
    post.put(2, "b.1")
    lock = post.outbox.queue("mail") / ".lease"

    def slow(item):
        lock.unlink()
        lock.write_text("of another host, for which it was too old")
        return post.deliver(item)

    attempts = post.outbox.flush("mail", slow, lambda item: "")
    assert (len(attempts), post.sent, post.waiting) == (1, ["a.1"], ["b.1"])


def test_what_the_fallback_has_delivered_is_done(post):
    post.put(1, "a.1")
    post.failures["a.1"], post.instead = REFUSED, "team"
    post.flush()
    [item] = post.outbox.waiting()
    assert item.fallback == "team"
    place = post.outbox.delivered("team")
    place.mkdir(parents=True)
    (place / item.name).write_text("{}")
    post.flush()
    assert (post.waiting, post.sent) == ([], [])


def test_what_waits_behind_one_that_fails_is_given_to_the_fallback_as_well(post):
    for n in range(5):
        post.put(n, f"{n}.1")
    post.failures["all"], post.instead = DOWN, "team"
    post.flush()
    assert [item.fallback for item in post.outbox.waiting()] == ["team"] * 5


def test_a_clock_that_was_far_ahead_delays_nothing_for_long(post):
    post.clock.forward(days=400)
    post.put(1, "a.1")
    post.failures["all"] = DOWN
    post.flush()
    post.clock.forward(days=-400)
    post.failures.clear()
    post.flush()
    assert post.sent == ["a.1"]


def test_a_file_that_is_no_item_stops_nothing(post):
    post.put(1, "a.1")
    (post.outbox.queue("mail") / "00000000~x.json").write_bytes(b"\xff{")
    post.flush()
    assert post.sent == ["a.1"]


def test_the_name_that_the_channel_gave_it_is_kept(post):
    post.put(1, "a.1")
    post.flush()
    assert post.outbox.reference("mail", "a.1") == "name-of-a.1"
    assert post.outbox.reference("mail", "a.2") == ""


def test_what_lies_in_the_outbox_can_be_read(post):
    post.put(1, "a.1")
    [path] = post.outbox.queue("mail").glob("*.json")
    assert json.loads(path.read_text())["message"]["subject"] == "a.1"


def test_nothing_is_hopeless_while_the_channel_takes_others_or_asks_for_time(post):
    post.put(1, "a.1")
    post.clock.forward(days=31)
    post.failures["a.1"] = DOWN
    for _ in range(MIN_TRIES_BEFORE_ABANDON):
        post.clock.forward(hours=1)
        attempts = post.flush()
    (old,) = post.outbox.find_expired("mail", attempts)
    assert old.message.id == "a.1"
    post.clock.forward(hours=1)
    post.put(2, "b.1")
    attempts = post.flush()
    assert [attempt.error for attempt in attempts] == [DOWN, None]
    assert post.outbox.find_expired("mail", attempts) == []
    assert post.outbox.find_expired("mail", []) == []
    post.clock.forward(hours=1)
    post.failures["a.1"] = Undelivered("later", retry_after=60)
    assert post.outbox.find_expired("mail", post.flush()) == []
