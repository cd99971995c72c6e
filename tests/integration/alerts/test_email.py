"""Mail to a real server that accepts or refuses it, is slow, or closes the connection."""

import os
import ssl

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.channels.email import Email
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.findings import Severity
from opsctl.host.system import SystemRunner
from opsctl.settings.alert_channels import EmailTable
from tests.integration.alerts.conftest import MailServer, read_kinds, serving
from tests.unit.alerts.conftest import Clock

MESSAGE = Message(id="a.1", root="a.1", at=Clock().now(), severity=Severity.CRITICAL, subject="größer", body="ß\n.\n")
GREETING = ("220 server", "250 server", "250 OK", "250 OK", "354 go on")
"""The answers up to the text of the mail."""


def open_channel(port, *, timeout=60.0, **more):
    table = {"kind": "email", "to": ("me@example.org",), "sender": "ops@example.org", "server": "127.0.0.1"}
    return Email(EmailTable.model_validate(table | {"port": port} | more), SystemRunner(), timeout=timeout)


def send_and_fail(email, message=MESSAGE):
    with pytest.raises(Undelivered) as caught:
        email.send(message)
    error = caught.value
    return error.message, error.is_permanent, error.is_ambiguous


def test_repeated_critical_findings_send_two_mails(site, by_mail, mail_server):
    world = site({"mail": by_mail})
    for mark in ".CCCCCC..":
        world.record(mark, key="slurm_status/gpt")
        dispatch.send_alerts(world.alerting)
        world.clock.forward(minutes=10)
    assert mail_server.subjects == [
        "[opsctl] CRITICAL: gpt: it is critical",
        "[opsctl] RESOLVED: gpt: it is ok",
    ]
    (bad, _), (good, _) = mail_server.mails
    assert good["In-Reply-To"] == good["References"] == bad["Message-ID"]
    assert bad["Auto-Submitted"] == "auto-generated"
    assert dispatch.list_undelivered(world.alerting) == []


def test_non_ascii_text_and_lone_dot_arrive(mail_server):
    open_channel(mail_server.port).send(MESSAGE)
    [(mail, to)] = mail_server.mails
    assert (mail["Subject"], mail.get_content().replace("\r\n", "\n"), to) == ("größer", "ß\n.\n", ["me@example.org"])
    assert mail["Message-ID"] == "<a.1@opsctl.example.org>"


def test_unreachable_server_is_tried_again(site, by_mail, port):
    server = MailServer()
    world = site({"mail": {**by_mail, "port": port}})
    world.record("C")
    [attempt] = dispatch.send_alerts(world.alerting)
    assert attempt.error.message == f"127.0.0.1:{port}: [Errno 111] Connection refused"
    assert dispatch.send_alerts(world.alerting) == []  # the next attempt is not due
    world.clock.forward(seconds=30)
    with serving(server, port):
        dispatch.send_alerts(world.alerting)
    assert server.subjects == ["[opsctl] CRITICAL: gpt: it is critical"]


def test_unknown_host_name_is_a_temporary_failure():
    text, is_permanent, _ = send_and_fail(open_channel(25, server="no-such-host.invalid"))
    assert text.startswith("no-such-host.invalid:25: ")
    assert not is_permanent


@pytest.mark.parametrize(("code", "is_permanent"), [(450, False), (550, True)])
def test_refused_recipient(mail_server, code, is_permanent):
    mail_server.answers["me@example.org"] = f"{code} no"
    where = f"127.0.0.1:{mail_server.port}"
    assert send_and_fail(open_channel(mail_server.port)) == (f"{where}: {code} no", is_permanent, False)


@pytest.mark.parametrize(("code", "is_permanent"), [(451, False), (552, True)])
def test_refused_mail(mail_server, code, is_permanent):
    mail_server.answers["DATA"] = f"{code} no"
    where = f"127.0.0.1:{mail_server.port}"
    assert send_and_fail(open_channel(mail_server.port)) == (f"{where}: {code} no", is_permanent, False)


def test_other_recipient_gets_the_mail_after_a_refusal(mail_server):
    mail_server.answers["gone@example.org"] = "550 who?"
    text = open_channel(mail_server.port, to=("gone@example.org", "me@example.org")).send(MESSAGE)
    assert text == "refused for gone@example.org: 550 who?"
    assert [to for _, to in mail_server.mails] == [["me@example.org"]]


def test_temporary_refusal_delays_all_recipients(mail_server):
    mail_server.answers["full@example.org"] = "452 full"
    send_and_fail(open_channel(mail_server.port, to=("me@example.org", "full@example.org")))
    assert mail_server.mails == []


def test_refused_mail_goes_to_the_fallback_at_once(site, by_mail, mail_server, tmp_path):
    mail_server.answers["me@example.org"] = "550 who?"
    world = site(
        {"mail": by_mail, "file": {"kind": "file", "path": str(tmp_path / "alerts.txt")}},
        routes=({"channels": ("mail",)},),
    )
    world.record("C")
    dispatch.send_alerts(world.alerting)
    dispatch.send_alerts(world.alerting)
    assert (tmp_path / "alerts.txt").read_text().count("CRITICAL: gpt: it is critical") == 1
    assert dispatch.list_undelivered(world.alerting) == []


def test_mail_undelivered_for_an_hour_goes_to_the_fallback(site, by_mail, port, tmp_path):
    world = site(
        {"mail": {**by_mail, "port": port}, "file": {"kind": "file", "path": str(tmp_path / "alerts.txt")}},
        routes=({"channels": ("mail",)},),
    )
    world.record("C")
    for _ in range(11):
        dispatch.send_alerts(world.alerting)
        assert not (tmp_path / "alerts.txt").exists()
        world.clock.forward(minutes=5)
    world.clock.forward(minutes=5)
    dispatch.send_alerts(world.alerting)
    assert (tmp_path / "alerts.txt").read_text().count("CRITICAL: gpt: it is critical") == 1


def test_fallback_waits_for_the_end_of_quiet_hours(site, by_mail, port, tmp_path):
    quiet = {"channels": ("mail",), "quiet": "23:00-07:00"}  # the world begins at midnight
    world = site(
        {"mail": {**by_mail, "port": port}, "file": {"kind": "file", "path": str(tmp_path / "alerts.txt")}},
        routes=(quiet,),
        time_zone="UTC",
        warning_looks=1,
    )
    world.record("w")
    for _ in range(9):  # the last at 07:52
        dispatch.send_alerts(world.alerting)
        assert not (tmp_path / "alerts.txt").exists()
        world.clock.forward(minutes=59)
    dispatch.send_alerts(world.alerting)
    assert (tmp_path / "alerts.txt").read_text().count("[opsctl] WARNING: gpt") == 1


def test_silent_server_times_out(scripted_server):
    silent = scripted_server()
    text, is_permanent, is_ambiguous = send_and_fail(open_channel(silent.port, timeout=0.3))
    assert text == f"127.0.0.1:{silent.port}: Connection unexpectedly closed: timed out"
    assert not is_permanent
    assert not is_ambiguous


def test_invalid_greeting_is_a_temporary_failure(scripted_server):
    text, is_permanent, _ = send_and_fail(open_channel(scripted_server("what?").port, timeout=0.5))
    assert not is_permanent
    assert "-1" in text or "what" in text or "closed" in text


@pytest.mark.parametrize("answers", range(1, 5))
def test_disconnect_before_the_mail_is_not_ambiguous(scripted_server, answers):
    _, is_permanent, is_ambiguous = send_and_fail(open_channel(scripted_server(*GREETING[:answers], None).port))
    assert (is_permanent, is_ambiguous) == (False, False)


def test_disconnect_after_the_mail_is_ambiguous(scripted_server):
    server = scripted_server(*GREETING, None)
    _, is_permanent, is_ambiguous = send_and_fail(open_channel(server.port))
    assert (is_permanent, is_ambiguous) == (False, True)
    assert len(server.mails) == 1


def test_ambiguous_mail_is_sent_again_with_the_same_id(site, by_mail, scripted_server, mail_server):
    server = scripted_server(*GREETING, None)
    world = site({"mail": {**by_mail, "port": server.port}})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    world.rules = site({"mail": by_mail}).rules
    world.clock.forward(minutes=1)
    dispatch.send_alerts(world.alerting)
    assert [server.mails[0]["Message-ID"]] == mail_server.ids
    assert read_kinds(world) == ["transition", "ambiguous", "delivered"]


def test_disconnect_after_acceptance_is_a_delivery(scripted_server):
    open_channel(scripted_server(*GREETING, "250 taken", None).port).send(MESSAGE)


def test_tls_and_login(certificate, port):
    server = MailServer()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    secure = {"server": "localhost", "tls": "starttls", "user": "me", "ca_file": str(certificate / "cert.pem")}
    with serving(server, port, tls_context=context, authenticator=server.authenticate, auth_required=True):
        open_channel(port, password="hunter2", **secure).send(MESSAGE)
        text, is_permanent, _ = send_and_fail(open_channel(port, password="wrong-password", **secure))
        assert is_permanent
        assert text.startswith(f"localhost:{port}: 535 ")
        assert "wrong-password" not in text
        text, is_permanent, _ = send_and_fail(open_channel(port, password="hunter2", **(secure | {"ca_file": ""})))
        assert is_permanent
        assert "certificate verify failed" in text
    assert server.logins[0] == ("me", "hunter2")
    assert len(server.mails) == 1


def test_server_without_tls_is_refused(mail_server):
    text, is_permanent, _ = send_and_fail(open_channel(mail_server.port, tls="starttls"))
    assert is_permanent
    assert "STARTTLS" in text


def sendmail(tmp_path, script):
    program = tmp_path / "sendmail"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return open_channel(25, sendmail=str(program), to=("me@example.org", "-x@example.org"))


def test_sendmail_gets_the_mail_on_its_input(tmp_path):
    sendmail(tmp_path, f'printf "%s " "$@" > {tmp_path}/argv; cat > {tmp_path}/mail').send(MESSAGE)
    assert (tmp_path / "argv").read_text() == "-i -f ops@example.org -- me@example.org -x@example.org "
    assert "Message-ID: <a.1@opsctl.example.org>\n" in (tmp_path / "mail").read_text()


@pytest.mark.parametrize(("code", "is_permanent"), [(75, False), (67, True)])
def test_exit_code_of_sendmail_is_reported(tmp_path, code, is_permanent):
    failure = send_and_fail(sendmail(tmp_path, f"echo no >&2; exit {code}"))
    assert failure == (f"{tmp_path}/sendmail: exit {code}: no", is_permanent, False)


def test_missing_sendmail_is_a_permanent_failure():
    assert send_and_fail(open_channel(25, sendmail="/not/there/sendmail"))[1:] == (True, False)


def test_password_appears_in_no_alert_file(site, by_mail, mail_server, monkeypatch):
    mail_server.answers["DATA"] = "554 hunter2 is not what I like to hear"
    monkeypatch.setenv("SMTP_PASSWORD", "hunter2")
    world = site({"mail": {**by_mail, "password": "$SMTP_PASSWORD"}})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    for path in filter(os.path.isfile, world.site.alerts.rglob("*")):
        assert "hunter2" not in path.read_text()
