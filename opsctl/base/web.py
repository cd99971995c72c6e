"""HTTP with the standard library: logs on a web server, webhooks, the ping URL of a dead-man's switch."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage, HTTPResponse
from ipaddress import ip_address
from typing import Any
from urllib import request
from urllib.error import URLError
from urllib.parse import SplitResult, quote, unquote, urlsplit

from opsctl import __version__

FAILURES = (OSError, HTTPException, UnicodeError)
"""The errors of `fetch` and of reading the response. URLError and time-outs are OSErrors."""
PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
SECRET_HEADERS = frozenset({"authorization", "cookie"})
REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Address:
    """An http or https address."""

    url: str
    """The address in ASCII, without login and fragment."""
    authorization: str = field(default="", repr=False)
    """The Authorization header made from the login."""

    @property
    def shown(self) -> str:
        """The address without the query, which may contain a secret."""
        return self.url.partition("?")[0]


def parse_address(text: str) -> Address:
    """Parse an http or https address. Raises ValueError, whose message does not contain the text."""
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port of the address is no number from 1 to 65535") from None  # urlsplit quotes the port
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise ValueError("not an address that starts with http:// or https://")
    plain = parts._replace(netloc=_host(parts), path=_ascii(parts.path), query=_ascii(parts.query), fragment="")
    login = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return Address(plain.geturl(), login)


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    name = f"[{host}]" if ":" in host else _ascii(host.encode("idna").decode())
    return f"{name}:{parts.port}" if parts.port else name


def _ascii(text: str) -> str:
    return quote(text, safe=PRINTABLE)


class _AnyStatus(request.HTTPErrorProcessor):
    """Return error statuses as responses; follow redirects."""

    def http_response(self, request: request.Request, response: HTTPResponse) -> Any:
        return super().http_response(request, response) if response.status in REDIRECTS else response

    def https_response(self, request: request.Request, response: HTTPResponse) -> Any:
        return self.http_response(request, response)


class _Proxies(request.ProxyHandler):
    """The proxies of the environment, but not for this machine, such as the end of an ssh tunnel."""

    def proxy_open(self, req: request.Request, proxy: str, type: str) -> Any:
        return None if _is_this_machine(req.host) else super().proxy_open(req, proxy, type)


def _is_this_machine(host: str) -> bool:
    """Return whether a host, with or without a port, is a name or address of the loopback interface."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def open_session() -> request.OpenerDirector:
    """Return an opener that uses the proxies of the environment and follows redirects to http and https only."""
    session = request.OpenerDirector()
    for handler in (
        _Proxies,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPRedirectHandler,
        request.UnknownHandler,
        _AnyStatus,
    ):
        session.add_handler(handler())
    session.addheaders = [("User-Agent", f"opsctl/{__version__}")]
    return session


def fetch(
    session: request.OpenerDirector,
    address: Address,
    *,
    timeout: float,
    headers: Mapping[str, str] | None = None,
    data: bytes | None = None,
) -> HTTPResponse:
    """Return the response, whatever its status; `data` is sent by POST. Raises one of FAILURES."""
    query = request.Request(address.url, data=data)  # noqa: S310 (an Address is http or https)
    for name, value in (headers or {}).items():
        # A redirect may lead to another host, which must not get the token.
        add = query.add_unredirected_header if name.lower() in SECRET_HEADERS else query.add_header
        add(name, value)
    if address.authorization:
        query.add_unredirected_header("Authorization", address.authorization)
    response: HTTPResponse = session.open(query, timeout=timeout)
    return response


def read_retry_after_s(headers: Mapping[str, object] | HTTPMessage) -> float:
    """Return the seconds that a server asks to wait (Retry-After); 0 without the header, and for a date in it."""
    value = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
    text = str(value[0] if isinstance(value, list) and value else value)
    return float(text) if text.isdecimal() else 0


def describe(error: Exception) -> str:
    """Return the cause of the failure, without urllib's wrapping."""
    reason = error.reason if isinstance(error, URLError) else error
    return str(reason) or type(reason).__name__
