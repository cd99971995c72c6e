"""What a hostile service, or anybody who may write there, answers to the poll of answers: ntfy, PagerDuty, Slack."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opsctl.alerts.answer import RawAnswer, sign
from opsctl.alerts.channels import ntfy, pagerduty, slack
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.app import build
from opsctl.base.findings import Severity
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.monitor.watch_cycle import Watch
from opsctl.settings.alert_channels import AppriseTable, NtfyTable, SlackTable
from tests.hostile.conftest import Site
from tests.support.cases import read_table

KEY, TOPIC, MESSAGE = "k" * 32, "answers", "7.1"
TOKEN = "xoxb-not-real"
HEADERS: list[str] = []
"""Of all requests."""


@contextmanager
def serving(body: bytes, repeat: int = 1, location: str = "") -> Iterator[str]:
    """Answer every request on loopback with `body`, `repeat` times, until the reader has enough; or lead elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            HEADERS.append(str(self.headers))
            self.send_response(302 if location else 200)
            self.send_header(*(("Location", location) if location else ("X-Test", "x")))
            self.end_headers()
            try:
                for _ in range(repeat):
                    self.wfile.write(body)
            except OSError:
                pass

        do_POST = do_GET  # noqa: N815 (http.server's name)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def poll_ntfy(server: str) -> list[str]:
    table = NtfyTable(kind="ntfy", server=server, topic="t", answer_topic=TOPIC, answer_key=KEY)
    return [answer.message for answer in ntfy.poll("phone", table, SystemClock().now())]


def poll_slack(server: str, threads: int = 1) -> tuple[list[str], str]:
    """Return who has answered, and why not all answers could be read."""
    table = SlackTable(kind="slack", token=TOKEN, channel="C0123456", api_url=f"{server}/api/", reads_answers=True)
    references = {f"{number}.1": f"{number}.5" for number in range(threads)}
    return read_until_failure(slack.poll("team", table, references))


def read_until_failure(answers: Iterator[RawAnswer]) -> tuple[list[str], str]:
    senders = []
    try:
        for answer in answers:
            senders.append(answer.sender)
    except Undelivered as error:
        return senders, error.message
    return senders, ""


def poll_pagerduty(server: str) -> list[str]:
    table = AppriseTable(kind="apprise", url="pagerduty://a@b", pagerduty_token="t", pagerduty_api_url=server)
    return [answer.text for answer in pagerduty.poll("duty", table, [MESSAGE])]


def line(text: object, **fields: object) -> bytes:
    return json.dumps({"event": "message", "id": "x", "message": text, **fields}).encode() + b"\n"


SIGNED = {
    "good": "9999999999." + sign(KEY, f"{TOPIC}/ack/{MESSAGE}.9999999999"),
    "old": f"{MESSAGE}.1." + sign(KEY, f"{TOPIC}/ack/{MESSAGE}.1"),
    "hold": f"{MESSAGE}.9999999999." + sign(KEY, f"{TOPIC}/hold/{MESSAGE}.9999999999"),
    "other_topic": f"{MESSAGE}.9999999999." + sign(KEY, f"{TOPIC}2/ack/{MESSAGE}.9999999999"),
    "message_alone": sign(KEY, MESSAGE),
    "empty_key": sign("", MESSAGE),
    "signature": sign(KEY, f"{TOPIC}/ack/{MESSAGE}.9999999999"),
}
GOOD = SIGNED["good"]
NTFY = read_table(__file__, "ntfy")
FORGED = [
    *(text.format(**SIGNED) for text in read_table(__file__, "forged")),
    "\ud800 \udc80.x",
    ["hold"],
    {"a": 1},
    None,
    7,
]


@pytest.mark.attack("an answer by ntfy without the right signature")
@pytest.mark.parametrize("text", FORGED, ids=range(len(FORGED)))
def test_forged_answer_is_no_answer(text: object) -> None:
    with serving(line(text)) as server:
        assert poll_ntfy(server) == []


@pytest.mark.attack("a right answer by ntfy in an event that is no message, or in another field")
@pytest.mark.parametrize("event", read_table(__file__, "events"))
def test_other_event_is_no_answer(event: str) -> None:
    with serving(event.replace("GOOD", f"ack {MESSAGE}.{GOOD}").encode() + b"\n") as server:
        assert poll_ntfy(server) == []


@pytest.mark.attack("an answer by ntfy is posted again")
def test_replay_has_the_same_id() -> None:
    with serving(line(f"ack {MESSAGE}.{GOOD}") + line(f" ack {MESSAGE}.{GOOD} ", id="y")) as server:
        table = NtfyTable(kind="ntfy", server=server, topic="t", answer_topic=TOPIC, answer_key=KEY)
        first, second = ntfy.poll("phone", table, SystemClock().now())
    assert first == second


@pytest.mark.attack("bytes around a right answer by ntfy hide it")
@pytest.mark.parametrize("noise", [b"[" * 100_000 + b"\n", b"\xff\xfe\n", b"null\n", b"9" * 9999 + b"\n", b"\n\n"])
def test_noise_hides_no_answer(noise: bytes) -> None:
    with serving(noise + line(f"ack {MESSAGE}.{GOOD}") + noise) as server:
        assert poll_ntfy(server) == [MESSAGE]


@pytest.mark.attack("a service answers without end")
@pytest.mark.parametrize("body", [b"x" * (1 << 20), line(f"ack {MESSAGE}.{GOOD}") * 1000], ids=["bytes", "answers"])
def test_endless_answer_is_cut(body: bytes) -> None:
    begun = time.process_time()
    table = NtfyTable(kind="ntfy", topic="t", answer_topic=TOPIC, answer_key=KEY)
    with serving(body, repeat=1000) as server:
        answers = ntfy.poll("phone", table.model_copy(update={"server": server}), SystemClock().now())
        senders, failure = read_until_failure(answers)
        assert len(senders) <= ntfy.MAX_ANSWERS
        assert failure == "answers of phone: others post there, more than is read"
        with pytest.raises(Undelivered):
            poll_pagerduty(server)
        assert len(poll_slack(server)[1]) < 1000
    assert time.process_time() - begun < 10


INCIDENTS = read_table(__file__, "incidents")


@pytest.mark.attack("incidents of PagerDuty of wrong types")
@pytest.mark.parametrize("body", INCIDENTS, ids=range(len(INCIDENTS)))
def test_wrong_incident_is_no_answer(body: str) -> None:
    with serving(body.encode()) as server:
        assert set(poll_pagerduty(server)) <= {"ack"}


@pytest.mark.attack("JSON of PagerDuty that is nested too deeply")
def test_deep_incident_is_reported() -> None:
    with serving(b"[" * 200_000) as server, pytest.raises(Undelivered):
        poll_pagerduty(server)


def thread(more: object = "", **row: object) -> bytes:
    rows = [{"ts": "1.2", "user": "U0ANNA", "text": "ack", **row}]
    return json.dumps({"ok": True, "messages": rows, "response_metadata": more}).encode()


@pytest.mark.attack("answers in Slack behind more messages or threads than are read are lost without a word")
def test_long_thread_is_reported() -> None:
    with serving(thread({"next_cursor": "x"})) as server:
        senders, failure = poll_slack(server)
        assert senders == ["U0ANNA"] * slack.MAX_PAGES
        assert failure == "answers of team: a thread has more than 2000 messages, of which the last are not read"
    with serving(thread()) as server:
        senders, failure = poll_slack(server, 25)
        assert len(senders) == slack.MAX_THREADS
        assert failure == "answers of team: of 25 threads, only the newest 20 are read"


@pytest.mark.attack("a redirect of Slack gives the token to another host")
@pytest.mark.parametrize("act", ["read", "send"])
def test_token_is_not_sent_elsewhere(act: str) -> None:
    with serving(thread()) as elsewhere, serving(b"", location=elsewhere.replace("127.0.0.1", "localhost")) as server:
        HEADERS.clear()
        if act == "read":
            poll_slack(server)
        else:
            table = SlackTable(kind="slack", token=TOKEN, channel="C0123456", api_url=f"{server}/api/")
            message = Message(id="a.1", root="a.1", at=SystemClock().now(), severity=Severity.OK, subject="s", body="b")
            with suppress(Undelivered):
                slack.Slack(table, SystemRunner()).send(message)
    assert [TOKEN in headers for headers in HEADERS] == [True, False]


@pytest.mark.attack("Slack answers with other data than its API has")
@pytest.mark.parametrize("body", read_table(__file__, "slack"))
def test_wrong_answer_of_slack_is_reported(body: str) -> None:
    with serving(body.replace("DEEP", "[" * 99_999).encode()) as server:
        senders, failure = poll_slack(server)
    assert senders == []
    assert failure.startswith("answers of team: ") or body.startswith('{"ok": true')


@pytest.mark.attack("a message of Slack that no listed person has written answers")
@pytest.mark.parametrize("row", read_table(__file__, "rows"))
def test_row_of_slack_is_no_answer_of_a_person(row: dict[str, object]) -> None:
    with serving(thread(**row)) as server:
        assert "U0ANNA" not in poll_slack(server)[0]


@pytest.mark.attack("people answer an alert, nobody hears them, and nothing says so")
def test_unread_answers_are_a_finding(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    file = site.root.parent / "site.toml"
    monkeypatch.setenv("OPSCTL_SITE", str(file))
    severities = []
    for body in (b"x" * (2 << 20), b""):
        with serving(body) as server:
            file.write_text(NTFY.format(root=site.root, server=server, key=KEY))
            file.chmod(0o600)
            findings = Watch(app=build()).cycle().findings
        severities += [finding.severity.value for finding in findings if finding.key == "answers/site"]
    assert severities == ["warning", "ok"]
