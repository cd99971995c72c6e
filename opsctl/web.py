"""HTTP by the standard library: a log on a web server, and the address that a dead-man's switch watches."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib import request
from urllib.error import URLError
from urllib.parse import SplitResult, quote, unquote, urlsplit

from opsctl import __version__

FAILURES = (OSError, HTTPException, UnicodeError)
"""What `fetch` and reading its response raise: URLError and time-outs are OSErrors."""
PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Address:
    """An http or https address."""

    url: str
    """Without login and fragment, in ASCII."""
    authorization: str = field(default="", repr=False)
    """The header that its login makes."""

    @property
    def shown(self) -> str:
        """The address without what may be secret in it."""
        return self.url.partition("?")[0]


def parse_address(text: str) -> Address:
    """Raises ValueError for what is no http or https address, and does not say it."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
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


class _EveryAnswer(request.HTTPErrorProcessor):
    """Returns refusals as responses; redirects are followed."""

    def http_response(self, request: request.Request, response: HTTPResponse) -> Any:
        return super().http_response(request, response) if response.status in REDIRECTS else response

    def https_response(self, request: request.Request, response: HTTPResponse) -> Any:
        return self.http_response(request, response)


def open_session() -> request.OpenerDirector:
    """What fetches: by the proxies of the environment, and from nowhere but the web wherever redirects lead."""
    session = request.OpenerDirector()
    for handler in (request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, request.HTTPRedirectHandler,
                    request.UnknownHandler, _EveryAnswer):  # fmt: skip
        session.add_handler(handler())
    session.addheaders = [("User-Agent", f"opsctl/{__version__}")]
    return session


def fetch(
    session: request.OpenerDirector, address: Address, *, timeout: float, headers: Mapping[str, str] | None = None
) -> HTTPResponse:
    """The response, whatever its status. Raises one of FAILURES."""
    asked = request.Request(address.url, headers=dict(headers or {}))  # noqa: S310 (an Address is of the web)
    if address.authorization:
        asked.add_unredirected_header("Authorization", address.authorization)
    response: HTTPResponse = session.open(asked, timeout=timeout)
    return response


def describe(error: Exception) -> str:
    """What failed, without urllib's wrapping."""
    reason = error.reason if isinstance(error, URLError) else error
    return str(reason) or type(reason).__name__
