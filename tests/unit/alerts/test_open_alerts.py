"""Open alerts as `opsctl status` shows them."""

from datetime import timedelta

from opsctl.alerts.open_alerts import open_alerts


def briefs(world):
    return [(open_alert.level, open_alert.summary) for open_alert in open_alerts(world.ledger.path)]


def test_silence_of_an_open_alert_is_shown(world):
    world.record("C")
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=4), "maintenance")
    [(level, summary)] = briefs(world)
    assert (level, summary.startswith("it is critical (silenced until 2026-01-01 04:00 UTC by ")) == ("critical", True)
    assert summary.endswith(": maintenance)")


def test_silenced_critical_finding_is_shown(world):
    world.record(".")
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=4), "maintenance")
    assert briefs(world) == []
    world.record("C")
    [(level, summary)] = briefs(world)
    assert (level, summary.startswith("hang/gpt is critical (silenced until ")) == ("critical", True)
    [brief] = open_alerts(world.ledger.path)
    assert (brief.train, brief.silenced_until) == ("gpt", "2026-01-01T04:00:00Z")


def test_expired_silence_is_not_shown(world):
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=4), "maintenance")
    world.clock.forward(hours=5)
    world.record("C")
    assert briefs(world) == [("critical", "it is critical")]


def test_acknowledged_alert_is_marked(world):
    world.record("C")
    world.ledger.ack("hang/gpt", "on it")
    assert [open_alert.acknowledged for open_alert in open_alerts(world.ledger.path)] == [True]


def test_unreadable_ledger_has_no_open_alerts(world):
    assert open_alerts(world.ledger.path) == []
    world.site.create()
    world.ledger.path.write_text('{"entries": {"x": 3}, "silences": []}')
    assert open_alerts(world.ledger.path) == []
