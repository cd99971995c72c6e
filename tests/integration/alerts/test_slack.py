"""Slack, through slack_sdk, to a real web server that answers as Slack does, or as it should not."""

import json

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.channels.slack import Slack
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.host.system import SystemRunner
from opsctl.model import Level
from opsctl.settings.alerts import SlackTable
from tests.unit.alerts.conftest import Clock

SECRET = "/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"
TOKEN = "xoxb-not-a-real-token"
MESSAGE = Message(
    id="abc.1", root="abc.1", at=Clock().now(), level=Level.CRITICAL, subject="it <hangs>", body="a & b\n"
)


def webhook(web):
    return {"kind": "slack", "webhook": web.url + SECRET}


def bot(web):
    return {"kind": "slack", "token": TOKEN, "channel": "#oncall", "api_url": f"{web.url}/api/"}


def says(**answer):
    return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()


def deliver(table, *, timeout=60):
    return Slack(SlackTable.model_validate(table), SystemRunner(), timeout=timeout).send(MESSAGE)


def failure(table):
    with pytest.raises(Undelivered) as caught:
        deliver(table)
    return caught.value


def test_a_webhook_gets_the_text_as_text(web):
    deliver(webhook(web))
    [(path, _, body)] = web.requests
    assert path == SECRET
    assert json.loads(body)["text"] == "*it &lt;hangs&gt;*\n```\na &amp; b\n```"


def test_a_log_line_can_neither_call_everybody_nor_leave_its_block(web):
    hostile = Message(id="a.1", root="a.1", at=MESSAGE.at, level=Level.CRITICAL, subject="s", body="<!channel> ``` *x*")
    Slack(SlackTable.model_validate(webhook(web)), SystemRunner()).send(hostile)
    assert web.bodies[0]["text"] == "*s*\n```\n&lt;!channel&gt; ''' *x*```"


@pytest.mark.parametrize("table", [webhook, bot])
def test_too_many_requests_are_waited_for(web, table):
    web.answers = [(429, {"Retry-After": "120"}, b"{}")]
    error = failure(table(web))
    assert (error.retry_after, error.is_permanent, error.is_ambiguous) == (120, False, False)
    assert len(web.requests) == 1  # the outbox is who tries again


@pytest.mark.parametrize("table", [webhook, bot])
def test_a_broken_server_is_tried_again(web, table):
    web.answers = [(500, {}, b"oops")]
    error = failure(table(web))
    assert error.message.startswith("slack: 500")
    assert not error.is_permanent


@pytest.mark.parametrize("table", [webhook, bot])
@pytest.mark.parametrize("garbage", [b"<html>Please log in</html>", b"", b"\xff\xfe\x00", b"[]", b"null"])
def test_garbage_is_no_yes(web, table, garbage):
    web.answers = [(200, {"Content-Type": "text/html"}, garbage)]
    error = failure(table(web))
    assert (error.is_permanent, error.is_ambiguous) == (False, True)


@pytest.mark.parametrize("table", [webhook, bot])
def test_a_connection_that_is_cut_before_the_answer_leaves_it_open(web, table):
    web.answers = [(None, {}, b"")]
    assert failure(table(web)).is_ambiguous


@pytest.mark.parametrize("table", [webhook, bot])
def test_a_server_that_is_down_has_not_got_it(web, table):
    given = table(web)
    web.close()
    error = failure(given)
    assert (error.is_permanent, error.is_ambiguous) == (False, False)
    assert "refused" in error.message


@pytest.mark.parametrize(("code", "why"), [(404, b"no_service"), (403, b"action_prohibited"), (410, b"channel_gone")])
def test_a_webhook_that_is_gone_will_not_come_back(web, code, why):
    web.answers = [(code, {}, why)]
    error = failure(webhook(web))
    assert (error.message, error.is_permanent) == (f"slack: {code} {why.decode()}", True)


@pytest.mark.parametrize(
    ("why", "is_permanent"), [("not_in_channel", True), ("invalid_auth", True), ("internal_error", False)]
)
def test_what_a_bot_is_told(web, why, is_permanent):
    web.answers = [says(ok=False, error=why)]
    error = failure(bot(web))
    assert (error.message, error.is_permanent) == (f"slack: {why}", is_permanent)


def test_a_secret_that_slack_repeats_is_not_said(web):
    web.answers = [(404, {}, f"nothing at {SECRET}".encode())]
    assert failure(webhook(web)).message == "slack: 404 nothing at /***/***/***/***"
    web.answers = [says(ok=False, error=f"bad token {TOKEN}")]
    assert failure(bot(web)).message == "slack: answered 'bad token ***'"


def test_an_address_that_is_none_is_found_and_not_said():
    with pytest.raises(Undelivered) as caught:
        Slack(SlackTable.model_validate({"kind": "slack", "webhook": "hooks.slack.com/secret"}), SystemRunner())
    assert caught.value.message == "webhook: must start with https://"


def test_a_bot_tells_in_a_thread_how_it_goes_on_and_shows_it_in_the_channel(site, web):
    world = site({"team": bot(web)})
    web.answers = [says(ok=True, ts="1700000000.000100"), says(ok=True, ts="1700000000.000200")]
    for mark in "C.":
        world.record(mark)
        dispatch.send_alerts(world.alerting)
    first, second = web.bodies
    assert "thread_ts" not in first
    assert (second["thread_ts"], second["reply_broadcast"]) == ("1700000000.000100", True)
    assert web.requests[0][1]["Authorization"] == f"Bearer {TOKEN}"


def test_an_alert_that_met_all_of_it_arrives_once(site, web):
    world = site({"team": webhook(web)})
    web.answers = [(429, {"Retry-After": "600"}, b""), (500, {}, b""), (200, {}, b"<html>"), (200, {}, b"ok")]
    world.record("C")
    for _ in range(60):
        dispatch.send_alerts(world.alerting)
        world.clock.forward(minutes=1)
    assert len(web.requests) == 4
    assert dispatch.list_undelivered(world.alerting) == []


def test_the_fallback_does_not_wait_for_what_another_channel_asked_for(site, web, tmp_path):
    file = {"kind": "file", "path": str(tmp_path / "told")}
    world = site({"team": webhook(web), "file": file}, routes=({"channels": ("team",)},))
    web.answers = [(429, {"Retry-After": "7000"}, b"")]
    world.record("C")
    dispatch.send_alerts(world.alerting)
    world.clock.forward(hours=1)
    dispatch.send_alerts(world.alerting)
    assert "CRITICAL: hang/gpt" in (tmp_path / "told").read_text()


def test_retry_after_is_kept_over_processes(site, web):
    world = site({"team": webhook(web)})
    web.answers = [(429, {"Retry-After": "600"}, b""), (200, {}, b"ok")]
    world.record("C")
    dispatch.send_alerts(world.alerting)
    world.clock.forward(seconds=599)
    assert dispatch.send_alerts(world.alerting) == []
    world.clock.forward(seconds=1)
    [attempt] = dispatch.send_alerts(world.alerting)
    assert attempt.error is None
