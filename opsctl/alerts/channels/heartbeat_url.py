"""The dead-man's switch: somebody outside is told that we are alive, and raises the alarm when that stops."""

from __future__ import annotations

from opsctl.alerts.channel_secrets import mask
from opsctl.alerts.outbox import Undelivered
from opsctl.web import FAILURES, Address, describe, open_session, parse_address
from opsctl.web import fetch as fetch_address

TIMEOUT = 10.0


def check(url: str) -> None:
    """Raises Undelivered for what is no address, and does not say it."""
    _parse(url)


def fetch(url: str) -> None:
    """Fetch `url`. Raises Undelivered, which does not say it."""
    address = _parse(url)
    try:
        with fetch_address(open_session(), address, timeout=TIMEOUT) as response:
            code = response.status
    except FAILURES as error:
        raise Undelivered(mask(f"ping: {describe(error)}", [url, address.url])) from None
    if code >= 400:
        raise Undelivered(f"ping: answered {code}", is_permanent=code < 500)


def _parse(url: str) -> Address:
    try:
        return parse_address(url)
    except ValueError:
        raise Undelivered("ping_url: is not an address that starts with https://", is_permanent=True) from None
