"""What a hostile ntfy server, or anybody who knows the topic, answers to the poll of answers; and PagerDuty's API."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opsctl.alerts.answer import sign
from opsctl.alerts.channels import ntfy, pagerduty
from opsctl.alerts.outbox import Undelivered
from opsctl.host.system import SystemClock
from opsctl.settings.alert_channels import AppriseTable, NtfyTable
from tests.support.cases import read_table

KEY, TOPIC, MESSAGE = "k" * 32, "answers", "7.1"


@contextmanager
def serving(body: bytes, repeat: int = 1) -> Iterator[str]:
    """Answer every request on loopback with `body`, `repeat` times, until the reader has enough."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(repeat):
                    self.wfile.write(body)
            except OSError:
                pass

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
    with serving(body, repeat=1000) as server:
        assert len(poll_ntfy(server)) <= ntfy.MAX_ANSWERS
        with pytest.raises(Undelivered):
            poll_pagerduty(server)
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
