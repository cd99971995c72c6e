"""Open alerts as `opsctl status` shows them."""

from datetime import timedelta

from opsctl.alerts.ledger import AlertLedger
from opsctl.alerts.ledger_files import LedgerFiles, ledger_path, open_alerts
from opsctl.base.findings import Severity
from tests.unit.alerts.conftest import finding


def read_open_alerts(world):
    return open_alerts(LedgerFiles(world.site, world.spare), world.clock.now())


def briefs(world):
    return [(open_alert.severity, open_alert.summary) for open_alert in read_open_alerts(world)]


def test_silence_of_an_open_alert_is_shown(world):
    world.record("C")
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=4), "maintenance")
    [(severity, summary)] = briefs(world)
    assert severity is Severity.CRITICAL
    assert summary.startswith("it is critical (silenced until 2026-01-01 04:00 UTC by ")
    assert summary.endswith(": maintenance)")


def test_silenced_critical_finding_is_shown(world):
    world.record(".")
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=4), "maintenance")
    assert briefs(world) == []
    world.record("C")
    [(severity, summary)] = briefs(world)
    assert (severity, summary.startswith("hang/gpt is critical (silenced until ")) == ("critical", True)
    [brief] = read_open_alerts(world)
    assert (brief.train, brief.silenced_until) == ("gpt", "2026-01-01T04:00:00Z")


def test_expired_silence_is_not_shown(world):
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=4), "maintenance")
    world.clock.forward(hours=5)
    world.record("C")
    assert briefs(world) == [("critical", "it is critical")]


def test_acknowledged_alert_is_marked(world):
    world.record("C")
    world.ledger.ack("hang/gpt", "on it")
    assert [open_alert.acknowledged for open_alert in read_open_alerts(world)] == [True]


def test_unreadable_ledger_is_an_open_alert(world):
    assert read_open_alerts(world) == []
    world.record("C")
    for break_ledger in (lambda path: path.write_text('{"entries": {"x": 3}}'), make_directory):
        break_ledger(ledger_path(world.ledger.site))
        assert [(alert.key, alert.severity) for alert in read_open_alerts(world)] == [("alerts/ledger", "unknown")]


def make_directory(path):
    path.unlink()
    path.mkdir()


def test_alerts_of_a_full_disk_are_shown(world):
    """The ledger then continues in the spare directory, which `opsctl status` and the pages did not read."""
    AlertLedger(world.spare, world.clock).record([finding(Severity.CRITICAL)])
    assert [alert.key for alert in read_open_alerts(world)] == list(world.ledger.entries()) == ["hang/gpt"]
