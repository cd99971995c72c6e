"""Mails in the name of a listed person: an answer counts only if the own mail server has verified its sender."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from opsctl.alerts.answer import RawAnswer
from opsctl.alerts.channels.email import _with_proof, find_sender
from tests.support.cases import read_table

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SERVER = "mx.example.org"


def make_mail(headers: str, date: str = format_datetime(NOW)) -> bytes:
    return f"{headers}\nDate: {date}\n\nack\n".replace("\n", "\r\n").encode()


@pytest.mark.parametrize("headers", read_table(__file__, "accepted"))
def test_verified_sender_is_found(headers: str) -> None:
    assert find_sender(make_mail(headers), SERVER, NOW) == "anna@example.org"


@pytest.mark.attack("who has an alert answers it by mail as a listed person")
@pytest.mark.parametrize("headers", read_table(__file__, "refused"))
def test_unverified_sender_is_nobody(headers: str) -> None:
    assert find_sender(make_mail(headers), SERVER, NOW) in ("", "eve@evil.org")


@pytest.mark.attack("an old mail of a listed person is sent again")
@pytest.mark.parametrize("age", [3 * 86400, -3 * 86400, None])
def test_old_mail_is_refused(age: int | None) -> None:
    date = "yesterday" if age is None else format_datetime(NOW - timedelta(seconds=age))
    headers = read_table(__file__, "accepted")[0]
    assert find_sender(make_mail(headers, date), SERVER, NOW) == ""


@pytest.mark.attack("a mail is sent again under another Message-ID, to another alert")
def test_replay_is_the_same_answer() -> None:
    headers = read_table(__file__, "accepted")[0]
    answers = []
    for number, more in enumerate(("Message-ID: <1@x>\n", "Received: x\nMessage-ID: <2@x>\nSubject: y\n")):
        given = RawAnswer(id=str(number), channel="mail", message=f"{number}.1", sender="anna@example.org", text="ack")
        answers.append(_with_proof(given, make_mail(more + headers), SERVER, NOW))
    assert answers[0].id == answers[1].id
    for more in read_table(__file__, "other_forms"):
        again = RawAnswer(
            id="3", channel="mail", message="1.1", sender="anna@example.org", text="ack: as read otherwise"
        )
        proved = _with_proof(again, make_mail(more + headers), SERVER, NOW)
        assert proved.id == answers[0].id or proved.sender.startswith("not verified")
    forged = _with_proof(answers[0], make_mail("From: anna@example.org"), SERVER, NOW)
    assert forged.sender == "not verified: anna@example.org"
