"""Answers from Slack and by mail, read from real servers on loopback."""

import json
from datetime import timedelta
from email.utils import format_datetime
from itertools import count

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.channels import email
from opsctl.base.errors import InputError
from opsctl.host.system import SystemClock
from opsctl.monitor.alert_people import AnswerPoller
from tests.integration.alerts.conftest import read_kinds
from tests.support.cases import read_cases, read_table
from tests.support.imap_server import PASSWORD, USER, append_mail, empty_mailbox, find_problem, serve_imap
from tests.support.ports import HeldPort
from tests.unit.alerts.conftest import World

PEOPLE = {"anna": ("U0ANNA", "anna@example.org")}
LATER = map(lambda number: timedelta(seconds=number), count())  # noqa: C417 (endless)
"""Nobody writes two mails in one second."""
ALERT_TS, REPLY_TS = "1700000000.000100", "1700000100.000200"


def no_chain(train):
    raise InputError(f"no train {train!r}")


def answer(world, find_chain=no_chain):
    """Read and apply the answers once; return what was done and the failures."""
    poller = AnswerPoller()
    poller.start(world.alerting)
    for thread in poller._threads.values():
        thread.join(250)
    return poller.apply(world.alerting, find_chain)


def as_json(**fields):
    return 200, {"Content-Type": "application/json"}, json.dumps({"ok": True, **fields}).encode()


@pytest.fixture
def slack(site, web):
    table = {
        "kind": "slack",
        "token": "xoxb-not-real",
        "channel": "C0123456",
        "api_url": f"{web.url}/api/",
        "reads_answers": True,
    }
    world = site({"team": table}, people=PEOPLE)
    web.answers = [as_json(ts=ALERT_TS)]
    world.record("C")
    dispatch.send_alerts(world.alerting)
    return world


def set_thread(web, *replies, reactions=()):
    root = {"ts": ALERT_TS, "user": "UBOT", "bot_id": "B1", "text": "alert", "reactions": list(reactions)}
    rows = [{"ts": f"{REPLY_TS}{number}", **row} for number, row in enumerate(replies)]
    web.answers = [as_json(messages=[root, *rows]), as_json(ts="1700000200.000300")]


def test_reply_in_the_thread_acknowledges_and_is_confirmed(slack, web):
    set_thread(web, {"user": "U0ANNA", "text": "Ack, on my way"})
    assert answer(slack) == (["anna by team: hang/gpt acknowledged"], [])
    acknowledged = slack.ledger.entries()["hang/gpt"].acknowledged
    assert (acknowledged.by, acknowledged.reason) == ("anna by team", "on my way")
    dispatch.send_alerts(slack.alerting)
    confirmed = json.loads(web.requests[-1][2])
    assert confirmed["thread_ts"] == ALERT_TS
    assert "anna: hang/gpt acknowledged" in confirmed["text"]
    assert "answer" in read_kinds(slack)


def test_answer_is_handled_once(slack, web):
    set_thread(web, {"user": "U0ANNA", "text": "silence 2h: deploy"})
    done, _ = answer(slack)
    assert done == ["anna by team: hang/gpt silenced until 2026-01-01 02:00 UTC"]
    set_thread(web, {"user": "U0ANNA", "text": "silence 2h: deploy"})
    assert answer(slack) == ([], [])


def test_reaction_acknowledges(slack, web):
    set_thread(web, reactions=[{"name": "eyes", "users": ["U0ANNA"]}, {"name": "fire", "users": ["U0ANNA"]}])
    assert answer(slack)[0] == ["anna by team: hang/gpt acknowledged"]


@pytest.mark.parametrize(*read_cases(__file__, "only_words_of_listed_people_count"))
def test_only_words_of_listed_people_count(slack, web, row, kinds):
    set_thread(web, row)
    assert answer(slack) == ([], [])
    assert slack.ledger.entries()["hang/gpt"].acknowledged is None
    assert ("answer-refused" in read_kinds(slack)) is kinds


def test_hold_names_the_train_that_cannot_be_held(slack, web):
    set_thread(web, {"user": "U0ANNA", "text": "hold"})
    assert answer(slack)[0] == ["anna by team: hold of gpt refused: no train 'gpt'"]


def test_every_message_of_a_long_thread_is_read_in_the_order_of_writing(slack, web):
    set_thread(web, {"user": "U0ANNA", "text": "ack", "subtype": "thread_broadcast"})
    last = web.answers[0]
    chat = [{"ts": f"1700000050.{number:06}", "user": "U0BEN", "text": "?"} for number in range(200)]
    web.answers = [as_json(messages=chat, response_metadata={"next_cursor": "bmV4dA=="}), last]
    assert answer(slack)[0] == ["anna by team: hang/gpt acknowledged"]
    assert [path.partition("&cursor=")[2] for path, *_ in web.requests[-2:]] == ["", "bmV4dA%3D%3D"]


def test_deleted_thread_hides_no_other(slack, web):
    web.answers = [(200, {}, b'{"ok": false, "error": "thread_not_found"}')]
    assert answer(slack) == ([], [])


def test_error_of_slack_is_reported_without_the_token(slack, web):
    web.answers = [(200, {}, b'{"ok": false, "error": "missing_scope xoxb-not-real"}')]
    done, problems = answer(slack)
    assert done == []
    assert "missing_scope" in problems[0]
    assert "xoxb-not-real" not in problems[0]


@pytest.fixture(scope="module")
def imap_port():
    if problem := find_problem():
        pytest.skip(problem)
    with HeldPort() as held, serve_imap(held.number):
        yield held.number


@pytest.fixture
def mail(tmp_path, by_mail, imap_port):
    login = {"imap_port": imap_port, "imap_user": USER, "imap_password": PASSWORD}
    table = {**by_mail, **login, **read_table(__file__, "imap")}
    empty_mailbox(imap_port)
    rules = {"channels": {"mail": table}, "people": PEOPLE}
    world = World(tmp_path, clock=SystemClock(), rules=World(tmp_path).rules.model_validate(rules))
    world.record("C")
    dispatch.send_alerts(world.alerting)
    return world


def reply(port, alert, text, *, id, more=""):
    append_mail(
        port,
        read_table(__file__, "reply")
        .format(
            date=format_datetime(SystemClock().now() + next(LATER)),
            id=id,
            alert=alert,
            text=text,
            more=more,
            quoted="ack",
        )
        .replace("\n", "\r\n"),
    )


def test_reply_by_mail_silences_and_is_confirmed(mail, mail_server, imap_port):
    reply(imap_port, mail_server.ids[0], "Silence 2h: driving", id="silence")
    done, problems = answer(mail)
    assert problems == []
    assert len(done) == 1
    assert done[0].startswith("anna by mail: hang/gpt silenced until ")
    [silence] = mail.ledger.read().silences
    assert (silence.by, silence.reason) == ("anna by mail", "driving")
    assert timedelta(hours=1) < silence.until - mail.clock.now() < timedelta(hours=3)
    dispatch.send_alerts(mail.alerting)
    confirmed = mail_server.mails[-1][0]
    assert confirmed["In-Reply-To"] == mail_server.ids[0]
    assert answer(mail) == ([], [])
    reply(imap_port, confirmed["Message-ID"], "Ack", id="second", more=f"References: {mail_server.ids[0]}\n")
    assert answer(mail)[0] == ["anna by mail: hang/gpt acknowledged"]


def test_forged_or_automatic_reply_does_nothing(mail, mail_server, imap_port):
    alert = mail_server.ids[0]
    reply(imap_port, alert.replace("@", "0@"), "ack", id="forged")
    reply(imap_port, alert, "ack", id="vacation", more="Auto-Submitted: auto-replied\n")
    assert answer(mail) == ([], [])
    assert mail.ledger.entries()["hang/gpt"].acknowledged is None


def test_mails_of_others_hide_no_answer(mail, mail_server, imap_port, monkeypatch):
    monkeypatch.setattr(email, "MAX_MAILS", 1)
    reply(imap_port, mail_server.ids[0], "ack", id="good")
    for number in range(3):
        reply(imap_port, mail_server.ids[0].replace("@", "0@"), "hold", id=f"forged{number}")
    assert answer(mail) == (["anna by mail: hang/gpt acknowledged"], [])
    reply(imap_port, mail_server.ids[0], "ack", id="another")
    done, [problem] = answer(mail)
    assert problem.endswith("of 5 mails, 2 of them answers, the newest are read")
    assert len(done) == 1


def test_wrong_password_is_reported_without_showing_it(mail, imap_port, tmp_path):
    table = mail.rules.channels["mail"].model_copy(update={"imap_password": type(mail.rules.ping_url)("wrong-pass")})
    mail.rules = mail.rules.model_copy(update={"channels": {"mail": table}})
    done, [problem] = answer(mail)
    assert done == []
    assert "127.0.0.1" in problem
    assert "wrong-pass" not in problem
