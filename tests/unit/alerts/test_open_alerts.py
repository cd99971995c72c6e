"""What `opsctl status` says of alerts."""

from datetime import timedelta

from opsctl.alerts.open_alerts import open_alerts


def briefs(world):
    return [(open_alert.level, open_alert.summary) for open_alert in open_alerts(world.ledger.path)]


def test_a_silence_of_what_people_were_told_is_said(world):
    world.see("C")
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=4), "maintenance")
    [(level, summary)] = briefs(world)
    assert (level, summary.startswith("it is critical (silenced until 2026-01-01 04:00 UTC by ")) == ("critical", True)
    assert summary.endswith(": maintenance)")


def test_what_nobody_is_told_for_a_silence_is_seen_all_the_same(world):
    world.see(".")
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=4), "maintenance")
    assert briefs(world) == []
    world.see("C")
    [(level, summary)] = briefs(world)
    assert (level, summary.startswith("hang/gpt is critical (silenced until ")) == ("critical", True)
    [brief] = open_alerts(world.ledger.path)
    assert (brief.train, brief.silenced_until) == ("gpt", "2026-01-01T04:00:00Z")


def test_a_silence_that_is_over_is_none(world):
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=4), "maintenance")
    world.clock.forward(hours=5)
    world.see("C")
    assert briefs(world) == [("critical", "it is critical")]


def test_what_is_acknowledged_is_marked(world):
    world.see("C")
    world.ledger.ack("hang/gpt", "on it")
    assert [open_alert.acknowledged for open_alert in open_alerts(world.ledger.path)] == [True]


def test_a_ledger_that_is_none_has_nothing_open(world):
    assert open_alerts(world.ledger.path) == []
    world.site.create()
    world.ledger.path.write_text('{"entries": {"x": 3}, "silences": []}')
    assert open_alerts(world.ledger.path) == []
