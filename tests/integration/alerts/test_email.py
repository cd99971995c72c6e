"""Mail, to a real server that takes it, refuses it, is slow, or hangs up in the middle."""

import os
import ssl

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.channels.email import Email
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.host.system import SystemRunner
from opsctl.model import Level
from opsctl.settings.alerts import EmailTable
from tests.integration.alerts.conftest import MailServer, journal, serving
from tests.unit.alerts.conftest import Clock

MESSAGE = Message(id="abc.1", root="abc.1", at=Clock().now(), level=Level.CRITICAL, subject="größer", body="ß\n.\n")
GREETING = ("220 liar", "250 liar", "250 OK", "250 OK", "354 go on")
"""Up to where the mail is said."""


def channel(port, *, timeout=60.0, **more):
    table = {"kind": "email", "to": ("me@example.org",), "sender": "ops@example.org", "server": "127.0.0.1"}
    return Email(EmailTable.model_validate(table | {"port": port} | more), SystemRunner(), timeout=timeout)


def failure(email, message=MESSAGE):
    with pytest.raises(Undelivered) as caught:
        email.send(message)
    error = caught.value
    return error.message, error.is_permanent, error.is_ambiguous


def test_the_evening_of_the_chronicles(site, by_mail, mail_server):
    world = site({"mail": by_mail})
    for mark in ".CCCCCC..":
        world.record(mark, key="slurm_status/gpt")
        dispatch.send_alerts(world.alerting)
        world.clock.forward(minutes=10)
    assert mail_server.subjects == [
        "[opsctl] CRITICAL: slurm_status/gpt: it is critical",
        "[opsctl] RESOLVED: slurm_status/gpt: it is ok",
    ]
    (bad, _), (good, _) = mail_server.mails
    assert good["In-Reply-To"] == good["References"] == bad["Message-ID"]
    assert bad["Auto-Submitted"] == "auto-generated"
    assert dispatch.list_undelivered(world.alerting) == []


def test_what_is_not_ascii_and_a_lone_dot_arrive(mail_server):
    channel(mail_server.port).send(MESSAGE)
    [(mail, to)] = mail_server.mails
    assert (mail["Subject"], mail.get_content().replace("\r\n", "\n"), to) == ("größer", "ß\n.\n", ["me@example.org"])
    assert mail["Message-ID"] == "<abc.1@opsctl.example.org>"


def test_a_server_that_is_down_is_tried_again(site, by_mail, port):
    server = MailServer()
    world = site({"mail": {**by_mail, "port": port}})
    world.record("C")
    [attempt] = dispatch.send_alerts(world.alerting)
    assert attempt.error.message == f"127.0.0.1:{port}: [Errno 111] Connection refused"
    assert dispatch.send_alerts(world.alerting) == []  # it is not yet time
    world.clock.forward(seconds=30)
    with serving(server, port):
        dispatch.send_alerts(world.alerting)
    assert server.subjects == ["[opsctl] CRITICAL: hang/gpt: it is critical"]


def test_a_name_that_nobody_knows_may_be_known_later():
    text, is_permanent, _ = failure(channel(25, server="no-such-host.invalid"))
    assert text.startswith("no-such-host.invalid:25: ")
    assert not is_permanent


@pytest.mark.parametrize(("code", "is_permanent"), [(450, False), (550, True)])
def test_a_recipient_that_is_refused(mail_server, code, is_permanent):
    mail_server.answers["me@example.org"] = f"{code} no"
    where = f"127.0.0.1:{mail_server.port}"
    assert failure(channel(mail_server.port)) == (f"{where}: {code} no", is_permanent, False)


@pytest.mark.parametrize(("code", "is_permanent"), [(451, False), (552, True)])
def test_a_mail_that_is_refused(mail_server, code, is_permanent):
    mail_server.answers["DATA"] = f"{code} no"
    where = f"127.0.0.1:{mail_server.port}"
    assert failure(channel(mail_server.port)) == (f"{where}: {code} no", is_permanent, False)


def test_one_of_two_who_is_refused_for_good_does_not_keep_it_from_the_other(mail_server):
    mail_server.answers["gone@example.org"] = "550 who?"
    text = channel(mail_server.port, to=("gone@example.org", "me@example.org")).send(MESSAGE)
    assert text == "refused for gone@example.org: 550 who?"
    assert [to for _, to in mail_server.mails] == [["me@example.org"]]


def test_one_of_two_who_can_have_it_later_makes_both_wait_so_that_none_has_it_twice(mail_server):
    mail_server.answers["full@example.org"] = "452 full"
    failure(channel(mail_server.port, to=("me@example.org", "full@example.org")))
    assert mail_server.mails == []


def test_a_refused_recipient_goes_to_the_fallback_at_once(site, by_mail, mail_server, tmp_path):
    mail_server.answers["me@example.org"] = "550 who?"
    world = site(
        {"mail": by_mail, "file": {"kind": "file", "path": str(tmp_path / "told")}}, routes=({"channels": ("mail",)},)
    )
    world.record("C")
    dispatch.send_alerts(world.alerting)
    dispatch.send_alerts(world.alerting)
    assert (tmp_path / "told").read_text().count("CRITICAL: hang/gpt: it is critical") == 1
    assert dispatch.list_undelivered(world.alerting) == []


def test_what_is_undelivered_for_an_hour_goes_to_the_fallback(site, by_mail, port, tmp_path):
    world = site(
        {"mail": {**by_mail, "port": port}, "file": {"kind": "file", "path": str(tmp_path / "told")}},
        routes=({"channels": ("mail",)},),
    )
    world.record("C")
    for _ in range(11):
        dispatch.send_alerts(world.alerting)
        assert not (tmp_path / "told").exists()
        world.clock.forward(minutes=5)
    world.clock.forward(minutes=5)
    dispatch.send_alerts(world.alerting)
    assert (tmp_path / "told").read_text().count("CRITICAL: hang/gpt: it is critical") == 1


def test_the_hour_until_the_fallback_begins_when_the_quiet_hours_end(site, by_mail, port, tmp_path):
    quiet = {"channels": ("mail",), "quiet": "23:00-07:00"}  # the world begins at midnight
    world = site(
        {"mail": {**by_mail, "port": port}, "file": {"kind": "file", "path": str(tmp_path / "told")}},
        routes=(quiet,),
        time_zone="UTC",
        warning_looks=1,
    )
    world.record("w")
    for _ in range(9):  # the last at 07:52
        dispatch.send_alerts(world.alerting)
        assert not (tmp_path / "told").exists()
        world.clock.forward(minutes=59)
    dispatch.send_alerts(world.alerting)
    assert (tmp_path / "told").read_text().count("[opsctl] WARNING: hang/gpt") == 1


def test_a_server_that_does_not_greet_is_left_after_a_while(liar):
    silent = liar()
    text, is_permanent, is_ambiguous = failure(channel(silent.port, timeout=0.3))
    assert text == f"127.0.0.1:{silent.port}: Connection unexpectedly closed: timed out"
    assert not is_permanent
    assert not is_ambiguous


def test_a_server_that_talks_nonsense(liar):
    text, is_permanent, _ = failure(channel(liar("what?").port, timeout=0.5))
    assert not is_permanent
    assert "-1" in text or "what" in text or "closed" in text


@pytest.mark.parametrize("said_before", range(1, 5))
def test_a_server_that_hangs_up_before_the_mail_was_said_has_not_got_it(liar, said_before):
    _, is_permanent, is_ambiguous = failure(channel(liar(*GREETING[:said_before], None).port))
    assert (is_permanent, is_ambiguous) == (False, False)


def test_a_server_that_hangs_up_after_the_mail_was_said_may_have_got_it(liar):
    server = liar(*GREETING, None)
    _, is_permanent, is_ambiguous = failure(channel(server.port))
    assert (is_permanent, is_ambiguous) == (False, True)
    assert len(server.mails) == 1


def test_it_is_sent_again_under_the_same_id_and_the_journal_says_so(site, by_mail, liar, mail_server):
    server = liar(*GREETING, None)
    world = site({"mail": {**by_mail, "port": server.port}})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    world.rules = site({"mail": by_mail}).rules
    world.clock.forward(minutes=1)
    dispatch.send_alerts(world.alerting)
    assert [server.mails[0]["Message-ID"]] == mail_server.ids
    assert journal(world) == ["transition", "ambiguous", "delivered"]


def test_a_server_that_took_it_and_does_not_say_goodbye_has_got_it(liar):
    channel(liar(*GREETING, "250 taken", None).port).send(MESSAGE)


def test_tls_and_login(certificate, port):
    server = MailServer()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    secure = {"server": "localhost", "tls": "starttls", "user": "me", "ca_file": str(certificate / "cert.pem")}
    with serving(server, port, tls_context=context, authenticator=server.authenticate, auth_required=True):
        channel(port, password="hunter2", **secure).send(MESSAGE)
        text, is_permanent, _ = failure(channel(port, password="wrong-password", **secure))
        assert is_permanent
        assert text.startswith(f"localhost:{port}: 535 ")
        assert "wrong-password" not in text
        text, is_permanent, _ = failure(channel(port, password="hunter2", **(secure | {"ca_file": ""})))
        assert is_permanent
        assert "certificate verify failed" in text
    assert server.logins[0] == ("me", "hunter2")
    assert len(server.mails) == 1


def test_a_server_without_tls_is_not_talked_to_in_clear(mail_server):
    text, is_permanent, _ = failure(channel(mail_server.port, tls="starttls"))
    assert is_permanent
    assert "STARTTLS" in text


def sendmail(tmp_path, script):
    program = tmp_path / "sendmail"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return channel(25, sendmail=str(program), to=("me@example.org", "-x@example.org"))


def test_sendmail_gets_the_mail_on_its_input(tmp_path):
    sendmail(tmp_path, f'printf "%s " "$@" > {tmp_path}/argv; cat > {tmp_path}/mail').send(MESSAGE)
    assert (tmp_path / "argv").read_text() == "-i -f ops@example.org -- me@example.org -x@example.org "
    assert "Message-ID: <abc.1@opsctl.example.org>\n" in (tmp_path / "mail").read_text()


@pytest.mark.parametrize(("code", "is_permanent"), [(75, False), (67, True)])
def test_what_sendmail_says_with_its_exit_code(tmp_path, code, is_permanent):
    said = failure(sendmail(tmp_path, f"echo no >&2; exit {code}"))
    assert said == (f"{tmp_path}/sendmail: exit {code}: no", is_permanent, False)


def test_a_sendmail_that_is_not_there():
    assert failure(channel(25, sendmail="/not/there/sendmail"))[1:] == (True, False)


def test_a_password_is_neither_in_the_arguments_nor_in_the_journal(site, by_mail, mail_server, monkeypatch):
    mail_server.answers["DATA"] = "554 hunter2 is not what I like to hear"
    monkeypatch.setenv("SMTP_PASSWORD", "hunter2")
    world = site({"mail": {**by_mail, "password": "$SMTP_PASSWORD"}})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    for path in filter(os.path.isfile, world.site.alerts.rglob("*")):
        assert "hunter2" not in path.read_text()
