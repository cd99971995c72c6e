"""A log behind a real web server on loopback, with and without ranges, and with failures."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from opsctl.base.errors import InputError, OpsctlError
from opsctl.cli.logs import logs
from opsctl.telemetry.logs.remote_log import MAX_TRIES, RemoteLog, connect


@dataclass
class FakeClock:
    """A clock that does not wait and records the requested waits."""

    slept: list[float] = field(default_factory=list)
    changes: list[Callable[[], object]] = field(default_factory=list)

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        """Run the next change at every wait of 5 s, as the command waits; raise Ctrl-C after the last change."""
        self.slept.append(seconds)
        if seconds == 5:
            if not self.changes:
                raise KeyboardInterrupt
            self.changes.pop(0)()


class FakeServer:
    """The content of the server and its behaviour."""

    def __init__(self) -> None:
        self.data = b""
        self.knows_ranges = True
        self.etag = ""
        self.failures: list[int] = []
        self.retry_after = ""
        self.drop_after: list[int] = []
        self.sent = 0
        self.requests: list[dict[str, str]] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(dict(handler.headers))
        if self.failures:
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            self.send(handler, self.failures.pop(0), b"", headers)
        elif self.etag and handler.headers.get("If-None-Match") == self.etag:
            self.send(handler, 304, b"", {})
        else:
            self.send_log(handler)

    def send_log(self, handler: BaseHTTPRequestHandler) -> None:
        size, begin, code = len(self.data), 0, 200
        headers = {"ETag": self.etag} if self.etag else {}
        span = handler.headers.get("Range", "")
        if self.knows_ranges and span:
            first, _, last = span.removeprefix("bytes=").partition("-")
            begin, code = (int(first) if first else max(0, size - int(last))), 206
            if begin >= size:
                self.send(handler, 416, b"", {"Content-Range": f"bytes */{size}"})
                return
            headers["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        self.send(handler, code, self.data[begin:], headers)

    def send(self, handler: BaseHTTPRequestHandler, code: int, body: bytes, headers: dict[str, str]) -> None:
        handler.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if body and self.drop_after:
            body = body[: self.drop_after.pop(0)]
            handler.close_connection = True
        self.sent += len(body)
        handler.wfile.write(body)


@pytest.fixture
def site() -> FakeServer:
    return FakeServer()


@pytest.fixture
def url(site: FakeServer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/main_log.txt"
    server.shutdown()
    server.server_close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(url: str, clock: FakeClock) -> Iterator[RemoteLog]:
    remote = connect(url, clock)
    yield remote
    remote.client.close()


LONG = b"".join(b"line %d of many\n" % n for n in range(20_000))


def test_only_new_bytes_are_sent(site, log):
    site.data = LONG
    assert list(log.read()) == LONG.splitlines()
    sent = site.sent
    site.data += b"new\nhal"
    assert list(log.read()) == [b"new"]
    assert site.sent - sent < 100
    site.data += b"f\n"
    assert list(log.read()) == [b"half"]
    assert list(log.read()) == []


def test_bytes_already_read_are_skipped_without_ranges(site, log):
    site.data, site.knows_ranges = LONG, False
    assert list(log.read()) == LONG.splitlines()
    site.data += b"new\n"
    assert list(log.read()) == [b"new"]
    assert list(log.read()) == []


def test_unchanged_log_is_not_sent_again(site, log):
    site.data, site.etag, site.knows_ranges = LONG, '"1"', False
    assert list(log.read()) == LONG.splitlines()
    sent = site.sent
    assert list(log.read()) == []
    assert site.sent == sent
    site.data, site.etag = LONG + b"new\n", '"2"'
    assert list(log.read()) == [b"new"]


def test_weak_etag_is_not_trusted(site, log):
    site.data, site.etag = b"one\n", 'W/"1"'
    assert list(log.read()) == [b"one"]
    site.data += b"two\n"
    assert list(log.read()) == [b"two"]


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_dropped_connection_is_resumed(site, log, clock, knows_ranges):
    site.data, site.drop_after, site.knows_ranges = LONG, [60_001, 100_000, 150_003], knows_ranges
    assert list(log.read()) == LONG.splitlines()
    assert clock.slept == [1, 1, 1]


def test_many_drops_are_survived_with_progress(site, log):
    site.data, site.drop_after = LONG, [10_000] * 30
    assert list(log.read()) == LONG.splitlines()


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_temporary_failure_is_retried_with_growing_waits(site, log, clock, code):
    site.data, site.failures = b"one\n", [code] * 4
    assert list(log.read()) == [b"one"]
    assert clock.slept == [0.5, 1, 2, 4]


def test_retry_after_is_followed_within_a_limit(site, log, clock):
    site.data, site.failures, site.retry_after = b"one\n", [429], "17"
    assert list(log.read()) == [b"one"]
    site.failures, site.retry_after = [503], "86400"
    assert list(log.read()) == []
    assert clock.slept == [17, 60]


def test_lasting_failure_ends_and_may_be_retried(site, log, url):
    site.data = b"one\n"
    assert list(log.read()) == [b"one"]
    site.data, site.failures = b"one\ntwo\n", [503] * MAX_TRIES
    with pytest.raises(OpsctlError) as caught:
        list(log.read())
    assert caught.value.message == f"{url}: no answer after 6 tries: 503 Service Unavailable"
    assert list(log.read()) == [b"two"]


def test_missing_server_is_given_up(clock):
    log = connect("http://127.0.0.1:9/log", clock)
    with pytest.raises(OpsctlError, match=r"^http://127\.0\.0\.1:9/log: no answer after 6 tries: .*refused"):
        list(log.read())


@pytest.mark.parametrize(("code", "words"), [(404, "404 Not Found"), (403, "403 Forbidden"), (401, "401 Unauthorized")])
def test_refusal_is_reported_at_once(site, log, url, code, words):
    site.failures = [code]
    with pytest.raises(OpsctlError) as caught:
        list(log.read())
    assert (caught.value.message, log.clock.slept) == (f"{url}: {words}", [])


def test_secrets_of_the_address_are_not_in_the_message(site, url, clock):
    site.failures = [404]
    log = connect(url.replace("http://", "http://me:secret@") + "?token=hidden#part", clock)
    with pytest.raises(OpsctlError) as caught:
        list(log.read())
    assert caught.value.message == f"{url}: 404 Not Found"


@pytest.mark.parametrize("knows_ranges", [True, False])
@pytest.mark.parametrize("new", [b"", b"x\n", b"another log\n" * 3, b"another log\n" * 50_000])
def test_replaced_log_is_read_from_its_start(site, log, new, knows_ranges):
    site.data, site.knows_ranges = LONG, knows_ranges
    assert list(log.read()) == LONG.splitlines()
    site.data = new
    assert list(log.read()) == new.splitlines()
    site.data += b"more\n"
    assert list(log.read()) == [b"more"]


def test_empty_log_is_waited_for(site, log):
    assert (log.tail(5), list(log.read())) == ([], [])
    site.data = b"one\n"
    assert list(log.read()) == [b"one"]


@pytest.mark.parametrize("knows_ranges", [True, False])
@pytest.mark.parametrize("lines", [0, 1, 7, 20_000, 30_000])
def test_tail_is_the_end_and_reading_continues(site, log, lines, knows_ranges):
    site.data, site.knows_ranges = LONG + b"half", knows_ranges
    whole = LONG.splitlines()
    assert log.tail(lines) == whole[len(whole) - min(lines, len(whole)) :]
    site.data += b" and half\n"
    assert list(log.read()) == [b"half and half"]


def test_tail_of_a_long_log_skips_its_head(site, log):
    site.data = LONG * 20
    assert log.tail(10) == LONG.splitlines()[-10:]
    assert site.sent < 100_000


def test_tail_of_very_long_lines_is_found(site, log):
    site.data = b"".join(b"%d" % n * 100_000 + b"\n" for n in range(9))
    assert log.tail(3) == site.data.splitlines()[-3:]


def test_connection_dropped_in_the_tail_is_resumed(site, log):
    site.data, site.drop_after = LONG, [1000, 2000]
    assert log.tail(3000) == LONG.splitlines()[-3000:]


def test_log_is_requested_uncompressed(site, log):
    list(log.read())
    assert site.requests[0]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("url", ["", "x", "ftp://host/log", "/main_log.txt", "http://", "file:///etc/passwd", "\0"])
def test_invalid_address_is_refused(url, clock):
    with pytest.raises(InputError) as caught:
        connect(url, clock)
    assert caught.value.message == "--from: needs an address that starts with http:// or https://"


def test_follow_reports_a_missing_server_once(site, url, clock):
    site.data = LONG
    clock.changes = [
        lambda: setattr(site, "failures", [404]),
        lambda: setattr(site, "failures", [404]),
        lambda: setattr(site, "data", LONG + b"new\n"),
    ]
    result = CliRunner().invoke(logs, ["--from", url, "-n", "1", "-f"], obj=SimpleNamespace(clock=clock))
    assert result.stdout == "line 19999 of many\nnew\n"
    assert result.stderr.startswith(f"opsctl: {url}: 404 Not Found; trying again\n")
    assert result.stderr.count("404 Not Found") == 1  # the port may contain 404


def test_follow_does_not_wait_for_an_unknown_address(site, url, clock):
    site.failures = [404]
    result = CliRunner().invoke(logs, ["--from", url, "-f"], obj=SimpleNamespace(clock=clock))
    assert isinstance(result.exception, OpsctlError)
