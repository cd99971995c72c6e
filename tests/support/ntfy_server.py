"""A server on loopback with ntfy's API: publish as JSON or as text to a topic, poll a topic; topics ask for tokens."""

import json
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen


class NtfyServer:
    """Topics and their messages. `tokens` holds the tokens that may write and read a topic; a missing topic is open."""

    def __init__(self) -> None:
        self.topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.tokens: dict[str, set[str]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                topic = self.path.strip("/")
                fields = {"topic": topic, "message": body} if topic else json.loads(body)
                self.answer(outer.publish(fields, self.headers.get("Authorization", "")))

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                assert query["poll"] == ["1"], "without poll the connection stays open"
                topic = parts.path.removesuffix("/json").strip("/")
                self.answer(outer.poll(topic, self.headers.get("Authorization", "")))

            def answer(self, answer: tuple[int, str]) -> None:
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1].encode())))
                self.end_headers()
                self.wfile.write(answer[1].encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _is_allowed(self, topic: str, authorization: str) -> bool:
        return topic not in self.tokens or authorization.removeprefix("Bearer ") in self.tokens[topic]

    def publish(self, fields: dict[str, Any], authorization: str) -> tuple[int, str]:
        topic = fields["topic"]
        if not self._is_allowed(topic, authorization):
            return 403, '{"code":40301,"http":403,"error":"forbidden"}'
        message = {"id": f"m{len(self.topics[topic])}", "time": int(time.time()), "event": "message", **fields}
        self.topics[topic].append(message)
        return 200, json.dumps(message)

    def poll(self, topic: str, authorization: str) -> tuple[int, str]:
        if not self._is_allowed(topic, authorization):
            return 403, '{"code":40301,"http":403,"error":"forbidden"}'
        opened = {"id": "open", "event": "open", "topic": topic}
        return 200, "".join(json.dumps(row) + "\n" for row in (opened, *self.topics[topic]))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def press(button: dict[str, Any], *, body: str = "") -> None:
    """Do what the app does when a button is pressed; `body` replaces that of the button."""
    data = (body or button["body"]).encode()
    with urlopen(Request(button["url"], data=data, headers=button.get("headers", {}), method="POST"), timeout=250):
        pass
