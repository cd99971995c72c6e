"""What programs outside get and send: assistants, ntfy, PagerDuty, and hosts for ssh."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opsctl.base.errors import InputError
from opsctl.base.web import fetch, open_session, parse_address
from opsctl.cli.mcp.mcp_server import MAX_RESULT_CHARS, NOTICE, bound, clean
from opsctl.cli.mcp.tool_table import load_tools
from opsctl.cli.remote_host import ssh_options
from opsctl.telemetry.logs.log_lines import for_terminal, plain


@pytest.mark.attack("long names in a result fill the context of an assistant")
def test_whole_answer_is_bounded() -> None:
    data = {"n" * 2_000: {f"list{number}": list(range(500)) for number in range(90)}}
    bounded, left_out = bound(data)
    assert len(json.dumps([bounded, left_out])) <= MAX_RESULT_CHARS


@pytest.mark.attack("a name in a result carries invisible text or a secret past the cleaning")
def test_names_of_what_is_left_out_are_clean() -> None:
    name = "a\U000e0041\u202e " + "hf_" + "A1b2" * 9
    _, left_out = bound({name: "x" * 5_000})
    (place,) = left_out
    assert not set(place) & {"\U000e0041", "\u202e"}
    assert "A1b2A1b2" not in place
    assert "`left_out`" in NOTICE


INVISIBLE = (
    "\u00ad\u034f\u115f\u1160\u17b4\u180b\u180e\u200b\u2060\u206a\u206f\u3164\uffa0\ufff9\U0001d173\U000e0041\U000e0100"
)


@pytest.mark.attack("signs without a shape carry a text that people do not see")
@pytest.mark.parametrize("sign", INVISIBLE, ids=lambda sign: f"{ord(sign):x}")
def test_invisible_sign_is_dropped(sign: str) -> None:
    assert clean(f"a{sign}b") == "ab"
    assert for_terminal(f"a{sign}b".encode()) == "ab"
    assert plain(f"a{sign}b") == "ab"


HOSTILE_VALUES = ("--site=/tmp/x", "-h", "--", "tr11 --actions", "--reason=x")


@pytest.mark.attack("a value of an assistant becomes an option")
@pytest.mark.parametrize("value", HOSTILE_VALUES)
def test_value_is_no_option(value: str) -> None:
    for tool in load_tools().values():
        texts = {name.name: value for name in tool.arguments if name.type == "string"}
        numbers = {name.name: name.default or 1 for name in tool.arguments if name.type != "string" and name.required}
        words = tool.command_line({**texts, **numbers})
        before = words[: words.index("--")] if "--" in words[len(tool.command) :] else words
        known = {argument.option for argument in tool.arguments} | {*tool.command}
        assert all(word.partition("=")[0] in known for word in before)


@pytest.mark.attack("a host that ssh takes for an option")
@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "--", "-", "", " ", "--host=-x", "-Eowned"])
def test_host_is_no_option(host: str) -> None:
    with pytest.raises(InputError):
        ssh_options(host)


@contextmanager
def listening(location: str, seen: list[str]) -> Iterator[str]:
    """Serve on loopback: note the Authorization header, and redirect to `location` if there is one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            self.send_response(302 if location else 200)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join(250)


@pytest.mark.attack("a service sends the token on to another host by a redirect")
@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_token_does_not_follow_a_redirect(name: str) -> None:
    first: list[str] = []
    second: list[str] = []
    headers = {name: "Bearer secret"}
    with (
        listening("", second) as thief,
        listening(thief, first) as service,
        fetch(open_session(), parse_address(service), timeout=250, headers=headers) as response,
    ):
        assert response.status == 200
    assert first == ["Bearer secret"]
    assert second == [""]
