"""Real servers on loopback: mail by aiosmtpd, web by http.server, and a scripted mail server on a bare socket."""

import contextlib
import json
import socket
import subprocess
import threading
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from opsctl.settings.alerts import AlertSettings
from tests.support.ports import HeldPort
from tests.unit.alerts.conftest import World


class MailServer:
    """A mail server that keeps the mails it accepts. `answers` holds refusals by recipient or by `DATA`."""

    def __init__(self):
        self.mails, self.answers, self.logins = [], {}, []

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address in self.answers:
            return self.answers[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        if "DATA" in self.answers:
            return self.answers["DATA"]
        mail = message_from_bytes(envelope.content, policy=policy.default)
        self.mails.append((mail, list(envelope.rcpt_tos)))
        return "250 taken"

    def authenticate(self, server, session, envelope, mechanism, data):
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"hunter2", handled=False)

    @property
    def ids(self):
        return [mail["Message-ID"] for mail, _ in self.mails]

    @property
    def subjects(self):
        return [mail["Subject"] for mail, _ in self.mails]


@pytest.fixture
def port():
    """A port on which no server listens unless the test starts one."""
    with HeldPort() as held:
        yield held.number


@contextlib.contextmanager
def serving(server, port, **settings):
    controller = Controller(server, hostname="127.0.0.1", port=port, ready_timeout=60, **settings)
    controller.start()
    try:
        yield
    finally:
        controller.stop()


@pytest.fixture
def mail_server():
    server = MailServer()
    with HeldPort() as held, serving(server, held.number):
        server.port = held.number
        yield server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A directory with a self-signed certificate for localhost and its key."""
    place = tmp_path_factory.mktemp("tls")
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = f"-addext subjectAltName=DNS:localhost -keyout {place}/key.pem -out {place}/cert.pem"
    subprocess.run(f"{request} {names}".split(), check=True, capture_output=True)
    return place


class ScriptedServer:
    """A mail server that sends the lines of `script` as its answers; None closes the connection.

    The line after `354 go on`, the answer to DATA, is the answer to the mail itself.
    """

    def __init__(self, script, *, late=0.0):
        self.script, self.mails, self.late = list(script), [], late
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, connection.makefile("rwb") as stream, contextlib.suppress(OSError):
                    self._talk(stream)

    def _talk(self, stream):
        for index, answer in enumerate(self.script):
            if index:
                self._listen(stream, is_mail=self.script[index - 1] == "354 go on")
            if answer is None:
                return
            stream.write(answer.encode() + b"\r\n")
            stream.flush()
        stream.readline()

    def _listen(self, stream, *, is_mail):
        if not is_mail:
            stream.readline()
            return
        lines = iter(stream.readline, b".\r\n")
        self.mails.append(message_from_bytes(b"".join(lines), policy=policy.default))

    def close(self):
        self._socket.close()


@pytest.fixture
def scripted_server():
    """A function that starts a mail server with a script of answers."""
    servers = []

    def start(*script):
        servers.append(ScriptedServer(script))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


class WebServer:
    """A web server that sends `answers` in order, repeats the last, and keeps the requests."""

    def __init__(self):
        self.answers, self.requests = [(200, {}, b"ok")], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def do_POST(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.host = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        self.requests.append((handler.path, dict(handler.headers), body))
        code, headers, text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if code is None:  # hang up
            handler.close_connection = True
            return
        handler.send_response(code)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(text)

    @property
    def bodies(self):
        return [json.loads(body) for _, _, body in self.requests]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def web():
    server = WebServer()
    yield server
    server.close()


@pytest.fixture
def site(tmp_path):
    """A function that makes a site with channels and rules."""

    def make(channels, **rules):
        return World(tmp_path, rules=AlertSettings.model_validate({"channels": channels, **rules}))

    return make


@pytest.fixture
def by_mail(mail_server):
    """The settings of a channel for the mail server."""
    return {
        "kind": "email",
        "to": ("me@example.org",),
        "sender": "opsctl@example.org",
        "server": "127.0.0.1",
        "port": mail_server.port,
    }


def read_kinds(world):
    """Return the kinds of all journalled events, of any host."""
    text = "".join(path.read_text() for path in world.site.alerts.glob("journal-*"))
    return [json.loads(line)["kind"] for line in text.splitlines()]
