"""Requests of opsctl and the proxies of the environment."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from opsctl.base.web import fetch, open_session, parse_address


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """A server that answers with the requested path: a proxy is asked for a whole address."""

    class Echo(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.path.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Echo) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()


def get(url: str) -> str:
    with fetch(open_session(), parse_address(url), timeout=250) as response:
        return response.read().decode()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3"])
def test_this_machine_is_reached_without_a_proxy(
    host: str, server: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host == "127.1.2.3":  # the server listens on one address
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", server.server_port))])
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert get(f"http://{host}:{server.server_port}/log") == "/log"


def test_other_hosts_are_reached_through_the_proxy(server: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    assert get("http://logs.invalid/log") == "http://logs.invalid/log"
