"""The channels for apprise, files and the terminal, and the ping of the dead man's switch."""

import logging
from dataclasses import replace

import apprise
import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.channels import CHANNELS, open_channel
from opsctl.alerts.channels.apprise_url import ByUrl
from opsctl.alerts.channels.heartbeat_url import PingKind, fetch
from opsctl.alerts.channels.webhook import Webhook
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.findings import Severity
from opsctl.host.system import SystemRunner
from opsctl.monitor.alert_people import list_train_pings
from opsctl.settings.alert_channels import AppriseTable, FileTable, WebhookTable
from opsctl.settings.alerts import AlertSettings
from tests.unit.alerts.conftest import Clock, finding

MESSAGE = Message(id="abc.2", root="abc.1", at=Clock().now(), severity=Severity.OK, subject="it runs", body="task 4\n")


def by_url(url):
    return ByUrl(AppriseTable.model_validate({"kind": "apprise", "url": url}), SystemRunner())


def test_apprise_calls_a_webhook(web):
    by_url(f"json://joe:hunter2@{web.host}/hook").send(MESSAGE)
    [body] = web.bodies
    assert (body["title"], body["message"].strip(), body["type"]) == ("it runs", "task 4", "success")


@pytest.mark.parametrize("answer", [(500, {}, b""), (404, {}, b""), (None, {}, b"")])
def test_failure_of_apprise_is_reported_without_the_secret(web, answer):
    web.answers = [answer]
    with pytest.raises(Undelivered) as caught:
        by_url(f"json://joe:hunter2@{web.host}/long-secret-path").send(MESSAGE)
    error = caught.value
    assert "JSON" in error.message
    assert not error.is_permanent
    assert not {"hunter2", "long-secret-path"} & set(error.message.replace("/", " ").replace(":", " ").split())


def test_unknown_apprise_service_is_reported_without_secret(monkeypatch):
    handler, records = logging.Handler(), []
    handler.emit = records.append  # caplog would see loggers that do not propagate as well
    monkeypatch.setattr(logging.root, "handlers", [handler])
    with pytest.raises(Undelivered) as caught:
        by_url("teems://secret")
    assert records == []
    assert caught.value.message == "url: unknown to apprise; the part before :// must name a service of apprise"


@pytest.mark.parametrize(
    ("service", "key"), [("pagerduty://integration@apikey", "dedup"), ("opsgenie://apikey", "alias")]
)
def test_resolution_closes_the_incident_of_the_alert(service, key):
    channel = by_url(service)
    address = channel._address(MESSAGE)
    service = apprise.Apprise.instantiate(address)
    assert getattr(service, key) == "abc"
    assert str(service.action) == "map"


def test_file_gets_every_message_as_a_paragraph(tmp_path):
    path = tmp_path / "alerts.txt"
    channel = open_channel(FileTable(kind="file", path=str(path)), SystemRunner())
    channel.send(MESSAGE)
    channel.send(MESSAGE)
    assert path.read_text() == "2026-01-01 00:00:00 it runs\n    task 4\n\n" * 2


def test_file_in_a_missing_directory_is_reported(tmp_path):
    with pytest.raises(Undelivered, match=r"/not-there/alerts.txt: No such file or directory$"):
        open_channel(FileTable(kind="file", path=f"{tmp_path}/not-there/alerts.txt"), SystemRunner()).send(MESSAGE)


def test_alert_is_printed_on_the_terminal(site, capsys):
    world = site({"here": {"kind": "stdout"}})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    assert capsys.readouterr().out.splitlines()[0] == "2026-01-01 00:00:00 [opsctl] CRITICAL: gpt: it is critical"


def test_closed_terminal_loses_no_alert(site, monkeypatch):
    class Gone:
        def write(self, _):
            raise BrokenPipeError(32, "Broken pipe")

    world = site({"here": {"kind": "stdout"}})
    world.record("C")
    monkeypatch.setattr("sys.stdout", Gone())
    [attempt] = dispatch.send_alerts(world.alerting)
    assert attempt.error.message == "stdout: Broken pipe"
    assert len(dispatch.list_undelivered(world.alerting)) == 1


def test_ping_is_fetched(site, web):
    world = site({}, ping_url=f"{web.url}/ping/secret-id")
    dispatch.ping(world.alerting)
    assert [path for path, *_ in web.requests] == ["/ping/secret-id"]


def test_no_ping_without_an_address(site):
    dispatch.ping(site({}).alerting)


@pytest.mark.parametrize(("code", "is_permanent"), [(404, True), (503, False)])
def test_refused_ping_is_reported_without_its_address(web, code, is_permanent):
    web.answers = [(code, {}, b"")]
    with pytest.raises(Undelivered) as caught:
        fetch(f"{web.url}/ping/secret-id")
    assert (caught.value.message, caught.value.is_permanent) == (f"ping: answered {code}", is_permanent)


def test_unreachable_or_invalid_ping_url_is_reported():
    with pytest.raises(Undelivered, match=r"^ping: .*Connection refused$"):
        fetch("http://127.0.0.1:1/secret-id")
    with pytest.raises(Undelivered, match=r"^ping_url: must start with https://$"):
        fetch("no address")


def test_channel_with_a_bug_loses_no_alert(site, monkeypatch, tmp_path):
    monkeypatch.setitem(CHANNELS, "stdout", f"{__name__}:Buggy")
    world = site({"here": {"kind": "stdout"}, "file": {"kind": "file", "path": str(tmp_path / "alerts.txt")}})
    world.record("C")
    attempts = {result.item.channel: result.error for result in dispatch.send_alerts(world.alerting)}
    assert attempts["here"].message == "bug in this channel: ZeroDivisionError"
    assert attempts["file"] is None
    assert [item.channel for item in dispatch.list_undelivered(world.alerting)] == ["here"]


class Buggy:
    def __init__(self, table, runner): ...

    def send(self, message, *, reply_to=""):
        return 1 / 0


def test_every_kind_of_channel_has_a_module():
    kinds = {
        kind.model_fields["kind"].annotation.__args__[0]
        for kind in AlertSettings.model_fields["channels"].annotation.__args__[1].__origin__.__args__
    }
    assert kinds == set(CHANNELS)


def test_start_success_and_failure_are_pinged_with_a_text(site, web):
    world = site({}, ping_url=f"{web.url}/ping/id?create=1", ping_style="healthchecks")
    for kind in PingKind.START, PingKind.SUCCESS, PingKind.FAIL:
        dispatch.ping(world.alerting, kind, "" if kind is PingKind.START else "3 findings")
    assert [(path, body) for path, _, body in web.requests] == [
        ("/ping/id/start?create=1", b""),
        ("/ping/id?create=1", b"3 findings"),
        ("/ping/id/fail?create=1", b"3 findings"),
    ]


def test_plain_ping_has_neither_start_nor_text(site, web):
    world = site({}, ping_url=f"{web.url}/ping")
    for kind in PingKind:
        dispatch.ping(world.alerting, kind, "text")
    assert [(path, body) for path, _, body in web.requests] == [("/ping", b"")]


def test_every_train_has_its_own_ping(site, web):
    world = site({}, ping_train_url=f"{web.url}/{{train}}")
    findings = [
        finding(Severity.OK, train="a", summary="step 7"),
        finding(Severity.CRITICAL, train="b", summary="b hangs"),
        finding(Severity.UNKNOWN, train="c"),
    ]
    for _, send in list_train_pings(world.alerting, "abc", findings):
        send()
    assert [(path, body) for path, _, body in web.requests] == [("/a", b"step 7"), ("/b/fail", b"b hangs")]


HOOK = {"kind": "webhook", "authorization": "Bearer sekret-token"}


def open_hook(url, **fields):
    return Webhook(WebhookTable.model_validate({**HOOK, "url": url, **fields}), SystemRunner())


def test_webhook_gets_its_template_with_quoted_text(web):
    message = replace(MESSAGE, subject='a "quoted" subject\n', severity=Severity.CRITICAL)
    open_hook(web.url, template='{"text": {{ subject }}, "sev": {{severity}}, "old": {{level}}}').send(message)
    open_hook(web.url).send(message)
    assert web.bodies[0] == {"text": 'a "quoted" subject\n', "sev": "critical", "old": "critical"}
    assert set(web.bodies[1]) == {"id", "thread", "at", "severity", "subject", "body"}
    assert web.requests[0][1]["Authorization"] == "Bearer sekret-token"
    assert web.requests[0][1]["Idempotency-Key"] == message.id


@pytest.mark.parametrize(
    ("answer", "is_permanent", "wait_s"),
    [((400, {}, b"no"), True, 0), ((429, {"Retry-After": "7"}, b""), False, 7), ((503, {}, b""), False, 0)],
)
def test_refusal_of_a_webhook_hides_its_secrets(web, answer, is_permanent, wait_s):
    web.answers = [(*answer[:2], answer[2] + b" secret-path sekret-token")]
    with pytest.raises(Undelivered) as caught:
        open_hook(f"{web.url}/secret-path").send(MESSAGE)
    assert (caught.value.is_permanent, caught.value.retry_after) == (is_permanent, wait_s)
    assert "secret-path" not in caught.value.message
    assert "sekret-token" not in caught.value.message


@pytest.mark.parametrize(
    ("template", "problem"), [("{{ subjekt }}", "no field subjekt"), ('{"a": "{{ body }}"}', "not JSON")]
)
def test_wrong_template_is_refused(template, problem):
    with pytest.raises(ValueError, match=problem):
        open_hook("http://127.0.0.1:1", template=template)
