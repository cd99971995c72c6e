"""The dead-man's switch: somebody outside is told that we are alive, and raises the alarm when that stops."""

from __future__ import annotations

import httpx

from opsctl.alerts.outbox import Undelivered
from opsctl.alerts.secrets import mask

TIMEOUT = 10.0


def check(url: str) -> None:
    """Raises Undelivered for what is no address, and does not say it."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError):
        parsed = httpx.URL("")
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise Undelivered("ping_url: is not an address that starts with https://", is_permanent=True)


def fetch(url: str) -> None:
    """Fetch `url`. Raises Undelivered, which does not say it."""
    try:
        code = httpx.get(url, timeout=TIMEOUT, follow_redirects=True).status_code
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise Undelivered(mask(f"ping: {type(error).__name__}: {error}", [url])) from None
    if code >= 400:
        raise Undelivered(f"ping: answered {code}", is_permanent=code < 500)
