"""Mails and Slack messages as people and programs write them: what is done, asked back, or answered as not understood.

The cases are data: tests/corpus/answers/.
"""

import tomllib
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.alert_history import read_alert_history
from opsctl.alerts.answer import RawAnswer, find_person, sign
from opsctl.alerts.channels import email, slack
from opsctl.base.errors import InputError, RunDirError
from opsctl.monitor.apply_answers import MAX_REPLIES_A_DAY, NOT_UNDERSTOOD, apply_answers, load_memory
from opsctl.settings.alerts import AlertSettings
from opsctl.state.events import AttemptFinalized, RequestDone
from tests.support.finalized_trains import make_node_care, make_train
from tests.unit.alerts.conftest import World

CORPUS = Path(__file__).parents[2] / "corpus" / "answers"
MAILS = tomllib.loads((CORPUS / "mails.toml").read_text())["mail"]
THREAD = tomllib.loads((CORPUS / "slack.toml").read_text())["message"]
KEY = "0f" * 32
ALERT = "The job array of gpt is held\n\nWhat to do now\n  opsctl release gpt\n"


@pytest.fixture
def world(tmp_path):
    channels = {"team": {"kind": "slack", "token": "x", "channel": "C1"}}
    rules = {"channels": channels, "people": {"anna": ("U0ANNA", "anna@example.org"), "ben": ("U0BEN",)}}
    world = World(tmp_path, rules=AlertSettings.model_validate({**rules, "time_zone": "UTC"}))
    world.record("C")
    world.train = make_train(tmp_path)
    return world


def find_chain(world):
    def find(train):
        if train != "gpt":
            raise InputError(f"no train {train!r}")
        return world.train.arrays

    return find


def write(world, text, *, id="1", sender="U0ANNA", key="hang/gpt", care=None, **more):
    """Apply one answer to the open alert."""
    alert = f"{world.ledger.entries()[key].incident}.1"
    raw = RawAnswer(id=id, channel="team", message=alert, sender=sender, text=text, **more)
    return apply_answers(world.alerting, [raw], find_chain(world), care)


def describe_effect(world, answers):
    """Apply the answers; return what came of them, in the words of the corpus."""
    apply_answers(world.alerting, answers, find_chain(world))
    waiting = load_memory(world.site).waiting
    [silence, *_] = [*world.ledger.read().silences, None]
    subjects = [item.message.subject for box in world.alerting.outboxes for item in box.waiting()]
    if world.ledger.entries()["hang/gpt"].acknowledged:
        return "ack"
    if silence:
        return silence.until
    if waiting:
        return f"confirm {waiting['gpt'].verb}"
    return "not understood" if any(NOT_UNDERSTOOD in subject for subject in subjects) else "ignored"


def read_right(right, now):
    """Return the end of the silence that is right; other effects as they are."""
    word, _, time = right.rpartition(" ")
    if word == "silence until":
        hour, minute = map(int, time.split(":"))
        return now.replace(hour=hour, minute=minute)
    if word != "silence":
        return right
    return now + timedelta(**{{"h": "hours", "m": "minutes"}[time[-1]]: int(time[:-1])})


def make_mail(case, alert):
    mail = EmailMessage()
    quoted = "\n".join(f"> {line}" for line in ALERT.splitlines())
    if "text" in case:
        mail.set_content(case["text"].replace("QUOTED", quoted).replace("ORIGINAL", ALERT))
    if "html" in case:
        mail.set_content(case["html"].replace("ORIGINAL", ALERT), subtype="html", charset="utf-8")
    headers = {"From": "Anna <anna@example.org>", "Subject": "Re: alert", "Message-ID": "<1@phone.example.org>"}
    signed = f"<{alert}.{sign(KEY, alert)}@opsctl.example.org>"
    for name, value in {**headers, "In-Reply-To": signed, **case.get("headers", {})}.items():
        mail[name] = value
    return mail.as_bytes()


@pytest.mark.parametrize("case", MAILS, ids=lambda case: case["name"])
def test_mail_is_understood_or_answered(world, case):
    alert = f"{world.ledger.entries()['hang/gpt'].incident}.1"
    answer = email._parse(make_mail(case, alert), "team", KEY)
    assert find_person(world.rules.people, answer.sender if answer else "") == ("anna" if answer else "")
    assert describe_effect(world, [answer] if answer else []) == read_right(case["right"], world.clock.now())


@pytest.mark.parametrize("case", THREAD, ids=lambda case: case["text"])
def test_message_in_a_thread_is_understood_or_answered(world, case):
    row = {"ts": "1.2", "user": "U0ANNA", **case}
    alert = f"{world.ledger.entries()['hang/gpt'].incident}.1"
    answers = list(slack._read_thread("team", alert, "1.1", [row]))
    assert describe_effect(world, answers) == read_right(case["right"], world.clock.now())


def test_second_answer_of_anybody_listed_confirms_a_hold(world):
    assert write(world, "hold: loss looks wrong") == [
        "anna by team: gpt: to hold, answer confirm within 1h; nothing done yet"
    ]
    assert world.train.queue.rows[0].is_held is False
    assert write(world, "confirm", id="2", sender="U0STRANGER") == []
    assert write(world, "confirm", id="3", sender="U0BEN") == ["ben by team: gpt: held 12"]
    assert write(world, "confirm", id="4") == ["anna by team: nothing waits for a second answer: nothing done"]
    reason = world.train.arrays.check().history.held.reason
    assert str(reason) == "anna by team, confirmed by ben by team: loss looks wrong"
    assert write(world, "release", id="5") + write(world, "release", id="6") == [
        "anna by team: gpt: to release, answer confirm within 1h; nothing done yet",
        "anna by team: gpt: released 12",
    ]


def test_one_answer_to_the_alert_of_a_proposal_confirms_it(world):
    why = {"outcome": "crashed", "action": "propose-hold", "why": "3 attempts"}
    world.train.arrays.note(AttemptFinalized(attempt="12_1.0", **why))
    world.record("C", key="failures/gpt/12_1.0")
    answer = {"key": "failures/gpt/12_1.0", "care": make_node_care(world.train)}
    assert "nothing waits" in write(world, "confirm", care=answer["care"])[0]
    assert write(world, "confirm", id="2", sender="U0STRANGER", **answer) == []
    assert world.train.queue.rows[0].is_held is False
    assert write(world, "confirm", id="3", **answer) == ["anna by team: gpt: held 12"]
    assert "nothing waits" in write(world, "confirm", id="4", **answer)[0]
    [confirmed] = [event for event in world.train.arrays.journal.events() if isinstance(event, RequestDone)]
    assert (confirmed.verb, confirmed.by) == ("confirm", "anna by team")


def test_first_answer_expires_and_another_replaces_it(world):
    write(world, "hold")
    write(world, "release", id="2")
    assert "to hold, answer confirm" in write(world, "hold", id="3")[0]
    world.clock.forward(minutes=61)
    assert "nothing waits" in write(world, "yes", id="4")[0]
    assert world.train.queue.rows[0].is_held is False
    assert write(world, "hold", id="5", is_button=True) == ["anna by team: gpt: held 12"]


def test_strangers_push_no_answer_out_of_the_memory(world):
    assert write(world, "hold", is_button=True) == ["anna by team: gpt: held 12"]
    flood = [RawAnswer(id=str(number), channel="team", message="1", sender="U1", text="x") for number in range(2001)]
    apply_answers(world.alerting, flood, find_chain(world))
    assert write(world, "hold", is_button=True) == []


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"handled": 7}', "x" * (65 << 20)], ids=["cut", "list", "number", "large"]
)
def test_nothing_is_done_while_the_memory_of_answers_cannot_be_read(world, content):
    (world.site.alerts / "answers.json").write_text(content)
    with pytest.raises(RunDirError, match="cannot be read"):
        write(world, "hold", is_button=True)
    assert world.train.queue.rows[0].is_held is False


def test_text_of_a_program_is_answered_a_bounded_number_of_times(world):
    for number in range(MAX_REPLIES_A_DAY + 5):
        write(world, "I am away", id=str(number))
    messages = [item.message for item in world.alerting.outboxes[0].waiting() if "answer-" in item.message.id]
    assert len(messages) == MAX_REPLIES_A_DAY
    assert messages[0].body.splitlines() == [NOT_UNDERSTOOD, "read: I am away"]


def test_answer_after_the_end_of_the_alert_is_answered(world):
    alert = f"{world.ledger.entries()['hang/gpt'].incident}.1"
    world.record(".")
    answer = RawAnswer(id="1", channel="team", message=alert, sender="U0ANNA", text="ack")
    done = apply_answers(world.alerting, [answer], find_chain(world))
    assert done == ["anna by team: the alert is no longer open: nothing done"]


def test_time_of_day_is_the_next_one_of_the_site(world):
    world.rules = world.rules.model_copy(update={"time_zone": "Europe/Paris"})
    world.clock.at = datetime(2026, 3, 28, 21, 30, tzinfo=UTC)  # 22:30 in Paris, where clocks change that night
    write(world, "silence until 08:00")
    [silence] = world.ledger.read().silences
    assert silence.until == datetime(2026, 3, 29, 6, 0, tzinfo=UTC)


def test_history_names_who_did_what_in_order(world):
    dispatch.send_alerts(world.alerting)  # journals the transition
    for id, (text, sender) in enumerate([("ack: on it", "U0ANNA"), ("what is it?", "U0BEN"), ("hold", "U0BEN")]):
        world.clock.forward(minutes=1)
        write(world, text, id=str(id), sender=sender)
    world.record("C", "hang/other", train="other")
    dispatch.send_alerts(world.alerting)
    events = read_alert_history(world.site.alerts, "gpt")[0]
    assert [(event.by, event.text) for event in events] == [
        ("opsctl", "it is critical"),
        ("anna by team", "acknowledged by anna by team: on it"),
        ("anna", "hang/gpt acknowledged"),
        ("ben", "not understood: what is it?"),
        ("ben", "gpt: to hold, answer confirm within 1h; nothing done yet"),
    ]
