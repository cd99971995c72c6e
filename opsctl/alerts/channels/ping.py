"""The dead-man's switch: somebody outside is told that we are alive, and raises the alarm when that stops."""

from __future__ import annotations

import httpx

from opsctl.alerts.outbox import Undelivered
from opsctl.alerts.secrets import mask


def fetch(url: str, *, timeout: float = 10.0) -> None:
    """Fetch `url`. Raises Undelivered, which does not say it."""
    try:
        code = httpx.get(url, timeout=timeout, follow_redirects=True).status_code
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise Undelivered(mask(f"ping: {type(error).__name__}: {error}", [url])) from None
    if code >= 400:
        raise Undelivered(f"ping: answered {code}", is_permanent=code < 500)
