"""A mail server and a Slack server with faults (moods), which count the alerts that they receive."""

import asyncio
import contextlib
import html
import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.error import HTTPError
from urllib.request import urlopen

from aiosmtpd.controller import Controller

from tests.support.ports import HeldPort

WORD = r"((?:BETTER: |STILL )?(?:RESOLVED|UNKNOWN|WARNING|CRITICAL))"
ROW = re.compile(rf"{WORD}: (\S+): ")
"""One alert of a storm."""
ALSO = re.compile(rf"{WORD}: .* \((\S+)\)$")
"""A further alert of the same train."""
FIRST = re.compile(rf"{WORD}: ")
KEY = re.compile(r"(\S+), incident \S+, message \S+$")
IDENT = re.compile(r"message (\S+)\s*$")


def rows(body: str) -> list[tuple[str, str]]:
    """Return word and key of every alert in a message."""
    lines = [line.strip() for line in body.strip().splitlines()]
    head, key = FIRST.match(lines[0]), KEY.match(lines[-1])
    if not head or not key:
        return [(match[1], match[2]) for line in lines if (match := ROW.match(line))]
    also = lines[lines.index("Also") :] if "Also" in lines else []
    return [(head[1], key[1]), *((match[1], match[2]) for line in also if (match := ALSO.match(line)))]


@dataclass
class Inbox:
    """The messages that a server has received."""

    mood: str = "well"
    taken: Counter[str] = field(default_factory=Counter)
    """How often, by the id of the message."""
    cut_off: Counter[str] = field(default_factory=Counter)
    """How often a message was taken without an answer to the sender."""
    recent: list[str] = field(default_factory=list)
    """Ids of messages taken lately. A sender that is killed cannot record their answers."""
    alerts: list[tuple[str, str]] = field(default_factory=list)
    """Word and key of every alert, in order, without messages that were delivered twice."""

    def take(self, body: str, *, is_cut_off: bool) -> str:
        """Count a message; return its id."""
        ident = IDENT.search(body)[1]
        if not self.taken[ident]:
            self.alerts += rows(body)
        self.taken[ident] += 1
        self.recent.append(ident)
        self.cut_off[ident] += is_cut_off
        return ident

    @property
    def doubled(self) -> int:
        return sum(times - 1 for times in self.taken.values())

    @property
    def doubled_unasked(self) -> Counter[str]:
        """Messages that were taken again although the sender had an answer."""
        return Counter({k: n - 1 - self.cut_off[k] for k, n in self.taken.items() if n - 1 > self.cut_off[k]})


class Mail(Inbox):
    """SMTP on loopback."""

    MOODS = ("down", "refuses", "refuses for good", "slow", "late", "drops", "hangs up")
    LATE = 11.0
    """Seconds after which the sender has stopped waiting for the answer."""

    def __init__(self) -> None:
        super().__init__()
        self._held = HeldPort()
        self.port = self._held.number
        self._controller: Controller | None = None
        self.feel("well")

    def feel(self, mood: str) -> None:
        self.mood = mood
        if mood == "down":
            self._stop()
        elif self._controller is None:
            self._controller = Controller(self, hostname="127.0.0.1", port=self.port, ready_timeout=60)
            self._controller.start()

    def close(self) -> None:
        self._stop()
        self._held.let_go()

    def _stop(self) -> None:
        if self._controller:
            self._controller.stop()
            self._controller = None

    async def handle_RCPT(self, server, session, envelope, address, options):
        if self.mood == "hangs up":
            server.transport.abort()
        if self.mood.startswith("refuses"):
            return "550 nobody here" if self.mood == "refuses for good" else "451 later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        mood, mail = self.mood, message_from_bytes(envelope.content, policy=policy.default)
        if mood == "slow":
            await asyncio.sleep(1)
        session.taken = self.take(mail.get_content(), is_cut_off=True)
        if mood == "late":
            await asyncio.sleep(self.LATE)
        if mood == "drops":
            server.transport.abort()
        return "250 taken"

    async def handle_QUIT(self, server, session, envelope):
        # A sender that goes on has got the answer, however slow this machine is.
        if taken := getattr(session, "taken", ""):
            session.taken = ""
            self.cut_off[taken] -= 1
        return "221 bye"


class CountingServer(ThreadingHTTPServer):
    """Knows how many accepted requests are not answered yet."""

    unanswered = 0

    def process_request(self, request, client_address):
        with LOCK:
            self.unanswered += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        super().shutdown_request(request)
        with LOCK:
            self.unanswered -= 1
            LOCK.notify_all()


LOCK = threading.Condition()


class Slack(Inbox):
    """chat.postMessage on loopback."""

    MOODS = ("429", "500", "garbage", "drops", "hangs up")
    SLOW_S = 5.0
    """After an answer that took so long, on a loaded machine, the sender may have stopped waiting."""

    def __init__(self) -> None:
        super().__init__()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                outer.answer(self)

            def do_GET(self):
                with LOCK:
                    LOCK.wait_for(lambda: self.server.unanswered == 1, timeout=60)
                self.send_error(404)

            def log_message(self, *_):
                pass

        self._server, self._numbers = CountingServer(("127.0.0.1", 0), Handler), count(1)
        self.url = f"http://127.0.0.1:{self._server.server_port}/api/"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def feel(self, mood: str) -> None:
        self.mood = mood

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        fields = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        mood, number = self.mood, next(self._numbers)
        began_s, taken = time.monotonic(), ""
        if mood in {"well", "garbage", "drops"}:
            body = html.unescape(fields["text"]).partition("*\n```\n")[2]
            taken = self.take(body.removesuffix("```"), is_cut_off=mood != "well")
        code, headers, text = {
            "well": (200, {}, json.dumps({"ok": True, "ts": f"{time.time():.0f}.{number}"})),
            "429": (429, {"Retry-After": "1200"}, json.dumps({"ok": False, "error": "ratelimited"})),
            "500": (500, {}, "oops"),
            "garbage": (200, {}, "<html>\x00 welcome to this network"),
        }.get(mood, (0, {}, ""))
        handler.close_connection = True
        if not code:
            return
        with contextlib.suppress(OSError):
            handler.send_response(code)
            for name, value in {"Content-Length": str(len(text.encode())), **headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(text.encode())
        if mood == "well" and time.monotonic() - began_s > self.SLOW_S:
            self.cut_off[taken] += 1

    def settle(self) -> None:
        """Wait until every message that was sent before has been taken."""
        with contextlib.suppress(HTTPError):
            urlopen(self.url)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
