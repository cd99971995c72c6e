"""What a channel that is dead for ever is not given: set aside after a month of trying, and told."""

import json

import pytest
from click.testing import CliRunner

from opsctl.alerts import dispatch
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import MIN_TRIES_BEFORE_ABANDON, OutboxItem
from opsctl.cli import cli
from opsctl.model import Level


@pytest.fixture
def dead(with_rules, tmp_path):
    """A site whose only channel is a file that cannot be written: a directory is there."""
    (tmp_path / "told").mkdir()
    return with_rules(channels={"log": {"kind": "file", "path": str(tmp_path / "told")}})


def lies_there(world, ident="hang.1", *, tries=MIN_TRIES_BEFORE_ABANDON - 1):
    """A message that the channel did not take so often."""
    message = Message(id=ident, root=ident, at=world.clock.now(), level=Level.CRITICAL, subject="no step", body="")
    world.alerting.outboxes[0].put(OutboxItem(message=message, channel="log", number=1, tries=tries))


def cycles(world, count, *, hours=2):
    for _ in range(count):
        dispatch.send_alerts(world.alerting)
        world.clock.forward(hours=hours)


def waiting(world):
    return [item.message.subject for item in dispatch.list_undelivered(world.alerting)]


def given_up(world):
    return [item.message.id for item in dispatch.list_abandoned(world.alerting)]


def journal(world):
    files = (world.site.alerts).glob("journal-*.jsonl")
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_after_a_month_of_trying_it_is_set_aside_and_told_by_the_channel_once_that_works(dead, tmp_path):
    lies_there(dead)
    dead.clock.forward(days=29)
    cycles(dead, 4, hours=6)
    assert (waiting(dead), given_up(dead)) == (["no step"], [])
    cycles(dead, 2, hours=6)
    assert given_up(dead) == ["hang.1"]
    assert [each["id"] for each in journal(dead) if each["kind"] == "given-up"] == ["hang.1"]
    assert waiting(dead) == ["[opsctl] LOST: delivery to log abandoned after 30 days"]
    lies_there(dead)  # whoever was cut off in between puts it again
    assert len(waiting(dead)) == 1
    (tmp_path / "told").rmdir()
    cycles(dead, 1)
    told = (tmp_path / "told").read_text()
    assert "2026-01-01 00:00 UTC  no step\n" in told
    assert "undelivered/log. Test the channel" in told
    assert (waiting(dead), given_up(dead)) == ([], ["hang.1"])


def test_a_clock_that_is_a_month_ahead_gives_nothing_up(dead):
    lies_there(dead, tries=MIN_TRIES_BEFORE_ABANDON - 10)
    dead.clock.forward(days=40)
    cycles(dead, 3)
    assert (len(waiting(dead)), given_up(dead)) == (1, [])


def test_what_waited_for_a_month_is_sent_by_a_channel_that_works_again(dead, tmp_path):
    lies_there(dead)
    dead.clock.forward(days=40)
    (tmp_path / "told").rmdir()
    cycles(dead, 1)
    assert (waiting(dead), given_up(dead)) == ([], [])
    assert "no step" in (tmp_path / "told").read_text()


def test_what_tells_of_the_loss_waits_on_and_nothing_grows(dead):
    for month in range(3):
        lies_there(dead, f"hang.{month}")
        dead.clock.forward(days=31)
        cycles(dead, 2)
        assert len(waiting(dead)) == 1
    lies_there(dead, "hang.9")
    dead.clock.forward(days=400)
    cycles(dead, 2)
    assert (len(waiting(dead)), len([ident for ident in given_up(dead) if ident == "hang.9"])) == (1, 1)
    before = given_up(dead)
    cycles(dead, MIN_TRIES_BEFORE_ABANDON + 2, hours=8)
    assert (len(waiting(dead)), given_up(dead)) == (1, before)


def test_people_see_what_was_given_up(dead, tmp_path):
    lies_there(dead)
    dead.clock.forward(days=31)
    cycles(dead, 1)
    site = tmp_path / "site.toml"
    site.write_text(f'root = "{tmp_path}/trains"\n')
    (tmp_path / "trains" / ".site").mkdir(parents=True)
    dead.site.alerts.rename(tmp_path / "trains" / ".site" / "alerts")
    shown = json.loads(CliRunner().invoke(cli, ["--site", str(site), "alerts", "list", "--json"]).output)
    assert [each["channel"] for each in shown["given_up"]] == ["log"]
    text = CliRunner().invoke(cli, ["--site", str(site), "alerts", "list"]).output
    assert "delivery by log abandoned: " in text
    lines = json.loads(CliRunner().invoke(cli, ["--site", str(site), "doctor", "--json"]).output)
    found = [line for line in lines if line["check"] == "alerts log" and line["level"] == "missing"]
    assert [line["result"] for line in found] == ["deliveries abandoned after 30 days: 1"]
