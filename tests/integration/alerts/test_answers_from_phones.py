"""Answers by the buttons of ntfy and by PagerDuty's acknowledgements, read from real servers on loopback."""

import json
from urllib.error import HTTPError

import pytest

from opsctl.alerts import dispatch
from opsctl.settings.alerts import AlertSettings
from tests.integration.alerts.conftest import read_kinds
from tests.integration.alerts.test_answers import answer
from tests.support.ntfy_server import NtfyServer, press

KEY = "0f" * 32


@pytest.fixture
def ntfy():
    server = NtfyServer()
    server.tokens = {"alerts-anna": {"tk_site"}, "answers-anna": {"tk_site", "tk_buttons"}}
    yield server
    server.close()


def make_table(ntfy, **fields):
    table = {"kind": "ntfy", "server": ntfy.url, "topic": "alerts-anna", "token": "tk_site"}
    answers = {"answer_topic": "answers-anna", "answer_token": "tk_buttons", "answer_key": KEY}
    return {**table, **answers, **fields}


@pytest.fixture
def world(site, ntfy):
    world = site({"anna-phone": make_table(ntfy)}, people={"anna": ("ntfy:anna-phone",)})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    return world


def buttons(ntfy):
    return {button["label"]: button for button in ntfy.topics["alerts-anna"][0]["actions"]}


def test_alert_by_ntfy_has_title_text_and_buttons(world, ntfy):
    [message] = ntfy.topics["alerts-anna"]
    assert message["title"].startswith("[opsctl] CRITICAL")
    assert (message["priority"], message["tags"]) == (5, ["rotating_light"])
    assert list(buttons(ntfy)) == ["Acknowledge", "Silence 4 h"]


def test_button_acknowledges_once_and_is_confirmed(world, ntfy):
    press(buttons(ntfy)["Acknowledge"])
    assert answer(world) == (["anna by anna-phone: hang/gpt acknowledged"], [])
    assert world.ledger.entries()["hang/gpt"].acknowledged.by == "anna by anna-phone"
    dispatch.send_alerts(world.alerting)
    confirmed = ntfy.topics["alerts-anna"][-1]
    assert "anna: hang/gpt acknowledged" in confirmed["title"]
    assert "actions" not in confirmed
    assert answer(world) == ([], [])
    assert "answer" in read_kinds(world)


def test_button_silences(world, ntfy):
    press(buttons(ntfy)["Silence 4 h"])
    assert answer(world)[0] == ["anna by anna-phone: hang/gpt silenced until 2026-01-01 04:00 UTC"]


def test_forged_and_foreign_answers_do_nothing(world, ntfy):
    button = buttons(ntfy)["Acknowledge"]
    message, _, signature = button["body"].rpartition(".")
    press(button, body="ack")
    press(button, body=f"{message}.{'0' * len(signature)}")
    press(button, body=f"{message}0.{signature}")
    press(button, body=f"rm -rf / {button['body'].split()[-1]}")
    assert answer(world) == ([], [])
    with pytest.raises(HTTPError):
        press({**button, "headers": {}})


def test_topic_of_a_stranger_is_refused_and_journalled(site, ntfy):
    world = site({"anna-phone": make_table(ntfy)}, people={"ben": ("ntfy:ben-phone",)})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    press(buttons(ntfy)["Acknowledge"])
    assert answer(world) == ([], [])
    assert "answer-refused" in read_kinds(world)


def test_refusal_of_ntfy_is_reported_without_secrets(site, ntfy):
    world = site({"anna-phone": make_table(ntfy, token="tk_wrong")}, people={"anna": ("ntfy:anna-phone",)})
    world.record("C")
    [delivery] = dispatch.send_alerts(world.alerting)
    _, [problem] = answer(world)
    for text in (str(delivery), problem):
        assert "403" in text
        assert "tk_wrong" not in text
        assert "answers-anna" not in text


@pytest.mark.parametrize(
    "fields", [{"answer_key": ""}, {"topic": ""}, {"server": "http://ntfy.example.org"}, {"buttons": ("cancel",)}]
)
def test_incomplete_or_open_settings_are_refused(ntfy, fields):
    with pytest.raises(ValueError, match=r"anna-phone"):
        AlertSettings.model_validate({"channels": {"anna-phone": make_table(ntfy, **fields)}})


# --- PagerDuty

ANNA, STRANGER = "PXPGF42", "P000000"


def acknowledged_by(*people):
    rows = [{"at": "2026-01-01T00:05:00Z", "acknowledger": {"id": id, "type": "user_reference"}} for id in people]
    incident = {"id": "Q1", "status": "acknowledged", "incident_key": "?", "acknowledgements": rows}
    return 200, {"Content-Type": "application/json"}, json.dumps({"incidents": [incident], "more": False}).encode()


@pytest.fixture
def pager(site, web):
    """The alerts go to the web server as JSON: the address of PagerDuty's events is fixed in apprise."""
    table = {
        "kind": "apprise",
        "url": f"json://{web.host}",
        "pagerduty_token": "y_NbAkKc66ryYTWUXYEu",
        "pagerduty_api_url": web.url,
    }
    world = site({"pager": table}, people={"anna": (ANNA,)})
    world.record("C")
    dispatch.send_alerts(world.alerting)
    web.requests.clear()
    return world


def test_acknowledged_incident_acknowledges_the_alert(pager, web):
    web.answers = [acknowledged_by(ANNA)]
    assert answer(pager) == (["anna by pager: hang/gpt acknowledged"], [])
    path, headers, _ = web.requests[0]
    incident = pager.ledger.entries()["hang/gpt"].incident
    assert path == f"/incidents?incident_key={incident}&statuses[]=acknowledged&limit=5"
    assert headers["Authorization"] == "Token token=y_NbAkKc66ryYTWUXYEu"
    web.requests.clear()
    dispatch.send_alerts(pager.alerting)
    assert web.requests == [], "a message of severity OK would resolve the incident"
    assert answer(pager) == ([], [])


@pytest.mark.parametrize(
    "response",
    [
        acknowledged_by(STRANGER),
        (200, {}, b'{"incidents": []}'),
        (200, {}, b'{"incidents": [{"acknowledgements": [{"acknowledger": null}, 3]}, 7]}'),
        (200, {}, b"[]"),
    ],
)
def test_nobody_who_is_listed_acknowledged(pager, web, response):
    web.answers = [response]
    assert answer(pager) == ([], [])
    assert pager.ledger.entries()["hang/gpt"].acknowledged is None


def test_wrong_token_is_reported_without_the_token(pager, web):
    web.answers = [(401, {}, b'{"error": "y_NbAkKc66ryYTWUXYEu"}')]
    done, [problem] = answer(pager)
    assert (done, problem) == ([], "answers of pager: PagerDuty: answered 401")
