"""Deliveries of a channel that fails for a month: they are abandoned and the channel is told later."""

import json

import pytest
from click.testing import CliRunner

from opsctl.alerts import dispatch
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import MIN_TRIES_BEFORE_ABANDON
from opsctl.alerts.outbox_item import OutboxItem
from opsctl.base.findings import Severity
from opsctl.cli import cli


@pytest.fixture
def dead(with_rules, tmp_path):
    """A site whose only channel is a file that cannot be written: its path is a directory."""
    (tmp_path / "told").mkdir()
    return with_rules(channels={"log": {"kind": "file", "path": str(tmp_path / "told")}})


def put_old_message(world, ident="hang.1", *, tries=MIN_TRIES_BEFORE_ABANDON - 1):
    """Put a message that the channel has refused `tries` times."""
    now = world.clock.now()
    message = Message(id=ident, root=ident, at=now, severity=Severity.CRITICAL, subject="no step", body="")
    world.alerting.outboxes[0].put(OutboxItem(message=message, channel="log", number=1, tries=tries))


def cycles(world, count, *, hours=2):
    for _ in range(count):
        dispatch.send_alerts(world.alerting)
        world.clock.forward(hours=hours)


def waiting(world):
    return [item.message.subject for item in dispatch.list_undelivered(world.alerting)]


def list_abandoned(world):
    return [item.message.id for item in dispatch.list_abandoned(world.alerting)]


def read_journal(world):
    rows = []
    for path in world.site.alerts.glob("journal-*.jsonl"):
        rows += [json.loads(line) for line in path.read_text().splitlines()]
    return rows


def test_delivery_is_abandoned_after_a_month(dead, tmp_path):
    put_old_message(dead)
    dead.clock.forward(days=29)
    cycles(dead, 4, hours=6)
    assert (waiting(dead), list_abandoned(dead)) == (["no step"], [])
    cycles(dead, 2, hours=6)
    assert list_abandoned(dead) == ["hang.1"]
    assert [row["id"] for row in read_journal(dead) if row["kind"] == "given-up"] == ["hang.1"]
    assert waiting(dead) == ["[opsctl] LOST: delivery to log abandoned after 30 days"]
    put_old_message(dead)  # as after a kill before the message is removed
    assert len(waiting(dead)) == 1
    (tmp_path / "told").rmdir()
    cycles(dead, 1)
    log_text = (tmp_path / "told").read_text()
    assert "2026-01-01 00:00 UTC  no step\n" in log_text
    assert "undelivered/log. Test the channel" in log_text
    assert (waiting(dead), list_abandoned(dead)) == ([], ["hang.1"])


def test_clock_a_month_ahead_abandons_nothing(dead):
    put_old_message(dead, tries=MIN_TRIES_BEFORE_ABANDON - 10)
    dead.clock.forward(days=40)
    cycles(dead, 3)
    assert (len(waiting(dead)), list_abandoned(dead)) == (1, [])


def test_recovered_channel_delivers_old_messages(dead, tmp_path):
    put_old_message(dead)
    dead.clock.forward(days=40)
    (tmp_path / "told").rmdir()
    cycles(dead, 1)
    assert (waiting(dead), list_abandoned(dead)) == ([], [])
    assert "no step" in (tmp_path / "told").read_text()


def test_notice_of_loss_is_kept_once(dead):
    for month in range(3):
        put_old_message(dead, f"hang.{month}")
        dead.clock.forward(days=31)
        cycles(dead, 2)
        assert len(waiting(dead)) == 1
    put_old_message(dead, "hang.9")
    dead.clock.forward(days=400)
    cycles(dead, 2)
    assert (len(waiting(dead)), len([ident for ident in list_abandoned(dead) if ident == "hang.9"])) == (1, 1)
    before = list_abandoned(dead)
    cycles(dead, MIN_TRIES_BEFORE_ABANDON + 2, hours=8)
    assert (len(waiting(dead)), list_abandoned(dead)) == (1, before)


def test_abandoned_deliveries_are_listed(dead, tmp_path):
    put_old_message(dead)
    dead.clock.forward(days=31)
    cycles(dead, 1)
    site = tmp_path / "site.toml"
    site.write_text(f'root = "{tmp_path}/trains"\n')
    (tmp_path / "trains" / ".site").mkdir(parents=True)
    dead.site.alerts.rename(tmp_path / "trains" / ".site" / "alerts")
    shown = json.loads(CliRunner().invoke(cli, ["--site", str(site), "alerts", "list", "--json"]).output)
    assert [row["channel"] for row in shown["abandoned"]] == ["log"]
    text = CliRunner().invoke(cli, ["--site", str(site), "alerts", "list"]).output
    assert "delivery by log abandoned: " in text
    lines = json.loads(CliRunner().invoke(cli, ["--site", str(site), "doctor", "--json"]).output)
    missing = [line for line in lines if line["check"] == "alerts log" and line["severity"] == "missing"]
    assert [line["result"] for line in missing] == ["deliveries abandoned after 30 days: 1"]
