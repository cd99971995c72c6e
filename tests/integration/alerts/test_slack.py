"""Slack, on a real web server with valid and invalid answers."""

import json
from dataclasses import replace

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.channels.slack import Slack
from opsctl.alerts.channels.webhook import Webhook
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.findings import Severity
from opsctl.host.system import SystemRunner
from opsctl.settings.alert_channels import SlackTable, WebhookTable
from tests.unit.alerts.conftest import Clock

SECRET = "/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"
TOKEN = "xoxb-not-a-real-token"
MESSAGE = Message(
    id="abc.1", root="abc.1", at=Clock().now(), severity=Severity.CRITICAL, subject="it <hangs>", body="a & b\n"
)


def webhook(web):
    return {"kind": "slack", "webhook": web.url + SECRET}


def bot(web):
    return {"kind": "slack", "token": TOKEN, "channel": "#oncall", "api_url": f"{web.url}/api/"}


def make_answer(**answer):
    return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()


def deliver(table, *, timeout=60):
    return Slack(SlackTable.model_validate(table), SystemRunner(), timeout=timeout).send(MESSAGE)


def deliver_and_fail(table):
    with pytest.raises(Undelivered) as caught:
        deliver(table)
    return caught.value


def test_webhook_text_is_escaped(web):
    deliver(webhook(web))
    [(path, _, body)] = web.requests
    assert path == SECRET
    assert json.loads(body)["text"] == "*it &lt;hangs&gt;*\n```\na &amp; b\n```"


def test_hostile_log_line_stays_in_its_block(web):
    hostile = replace(MESSAGE, severity=Severity.CRITICAL, subject="s", body="<!channel> ``` *x*")
    Slack(SlackTable.model_validate(webhook(web)), SystemRunner()).send(hostile)
    assert web.bodies[0]["text"] == "*s*\n```\n&lt;!channel&gt; ''' *x*```"


@pytest.mark.parametrize("table", [webhook, bot])
def test_retry_after_is_reported(web, table):
    web.answers = [(429, {"Retry-After": "120"}, b"{}")]
    error = deliver_and_fail(table(web))
    assert (error.retry_after, error.is_permanent, error.is_ambiguous) == (120, False, False)
    assert len(web.requests) == 1  # the outbox, not the channel, tries again


@pytest.mark.parametrize("status", [408, 425, 429, 404, 502, 503, 504])
def test_a_status_means_the_same_on_every_channel(web, status):
    web.answers = [(status, {"Retry-After": "30"}, b"{}")] * 3
    errors = [deliver_and_fail(webhook(web)), deliver_and_fail(bot(web))]
    with pytest.raises(Undelivered) as caught:
        Webhook(WebhookTable(kind="webhook", url=web.url), SystemRunner()).send(MESSAGE)
    verdicts = {(error.is_permanent, error.is_ambiguous, error.retry_after) for error in [*errors, caught.value]}
    assert verdicts == {(status == 404, status in {502, 504}, 30)}


@pytest.mark.parametrize("table", [webhook, bot])
def test_server_error_is_temporary(web, table):
    web.answers = [(500, {}, b"oops")]
    error = deliver_and_fail(table(web))
    assert error.message.startswith("slack: answered 500")
    assert not error.is_permanent


@pytest.mark.parametrize("table", [webhook, bot])
@pytest.mark.parametrize("garbage", [b"<html>Please log in</html>", b"", b"\xff\xfe\x00", b"[]", b"null"])
def test_garbage_is_not_an_acceptance(web, table, garbage):
    web.answers = [(200, {"Content-Type": "text/html"}, garbage)]
    error = deliver_and_fail(table(web))
    assert (error.is_permanent, error.is_ambiguous) == (False, True)


@pytest.mark.parametrize("table", [webhook, bot])
def test_disconnect_before_the_answer_is_ambiguous(web, table):
    web.answers = [(None, {}, b"")]
    assert deliver_and_fail(table(web)).is_ambiguous


@pytest.mark.parametrize("table", [webhook, bot])
def test_unreachable_server_is_a_temporary_failure(web, table):
    settings = table(web)
    web.close()
    error = deliver_and_fail(settings)
    assert (error.is_permanent, error.is_ambiguous) == (False, False)
    assert "refused" in error.message


@pytest.mark.parametrize(("code", "why"), [(404, b"no_service"), (403, b"action_prohibited"), (410, b"channel_gone")])
def test_removed_webhook_is_a_permanent_failure(web, code, why):
    web.answers = [(code, {}, why)]
    error = deliver_and_fail(webhook(web))
    assert (error.message, error.is_permanent) == (f"slack: answered {code} {why.decode()}", True)


@pytest.mark.parametrize(
    ("why", "is_permanent"), [("not_in_channel", True), ("invalid_auth", True), ("internal_error", False)]
)
def test_error_codes_of_the_bot_api(web, why, is_permanent):
    web.answers = [make_answer(ok=False, error=why)]
    error = deliver_and_fail(bot(web))
    assert (error.message, error.is_permanent) == (f"slack: {why}", is_permanent)


def test_secret_repeated_by_slack_is_hidden(web):
    web.answers = [(404, {}, f"nothing at {SECRET}".encode())]
    assert deliver_and_fail(webhook(web)).message == "slack: answered 404 nothing at /***/***/***/***"
    web.answers = [make_answer(ok=False, error=f"bad token {TOKEN}")]
    assert deliver_and_fail(bot(web)).message == "slack: answered 'bad token ***'"


def test_invalid_webhook_is_reported_without_the_secret():
    with pytest.raises(Undelivered) as caught:
        Slack(SlackTable.model_validate({"kind": "slack", "webhook": "hooks.slack.com/secret"}), SystemRunner())
    assert caught.value.message == "webhook: must start with https://"


def test_bot_answers_in_the_thread_of_the_alert(site, web):
    world = site({"team": bot(web)})
    web.answers = [make_answer(ok=True, ts="1700000000.000100"), make_answer(ok=True, ts="1700000000.000200")]
    for mark in "C.":
        world.record(mark)
        dispatch.send_alerts(world.alerting)
    first, second = web.bodies
    assert "thread_ts" not in first
    assert (second["thread_ts"], second["reply_broadcast"]) == ("1700000000.000100", True)
    assert web.requests[0][1]["Authorization"] == f"Bearer {TOKEN}"


def test_alert_arrives_once_after_several_failures(site, web):
    world = site({"team": webhook(web)})
    web.answers = [(429, {"Retry-After": "600"}, b""), (500, {}, b""), (200, {}, b"<html>"), (200, {}, b"ok")]
    world.record("C")
    for _ in range(60):
        dispatch.send_alerts(world.alerting)
        world.clock.forward(minutes=1)
    assert len(web.requests) == 4
    assert dispatch.list_undelivered(world.alerting) == []


def test_fallback_ignores_retry_after_of_another_channel(site, web, tmp_path):
    file = {"kind": "file", "path": str(tmp_path / "alerts.txt")}
    world = site({"team": webhook(web), "file": file}, routes=({"channels": ("team",)},))
    web.answers = [(429, {"Retry-After": "7000"}, b"")]
    world.record("C")
    dispatch.send_alerts(world.alerting)
    world.clock.forward(hours=1)
    dispatch.send_alerts(world.alerting)
    assert "CRITICAL: gpt" in (tmp_path / "alerts.txt").read_text()


def test_retry_after_is_remembered(site, web):
    world = site({"team": webhook(web)})
    web.answers = [(429, {"Retry-After": "600"}, b""), (200, {}, b"ok")]
    world.record("C")
    dispatch.send_alerts(world.alerting)
    world.clock.forward(seconds=599)
    assert dispatch.send_alerts(world.alerting) == []
    world.clock.forward(seconds=1)
    [attempt] = dispatch.send_alerts(world.alerting)
    assert attempt.error is None
