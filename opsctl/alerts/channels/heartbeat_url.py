"""The dead-man's switch: an outside service receives a ping per watch cycle and raises an alarm when pings stop."""

from __future__ import annotations

from opsctl.alerts.channel_secrets import mask
from opsctl.alerts.outbox import Undelivered
from opsctl.web import FAILURES, Address, describe, open_session, parse_address
from opsctl.web import fetch as fetch_address

TIMEOUT_S = 10.0


def check(url: str) -> None:
    """Check the address without fetching. Raises Undelivered, whose text does not contain the address."""
    _parse(url)


def fetch(url: str) -> None:
    """Fetch `url`. Raises Undelivered, whose text does not contain the address."""
    address = _parse(url)
    try:
        with fetch_address(open_session(), address, timeout=TIMEOUT_S) as response:
            code = response.status
    except FAILURES as error:
        raise Undelivered(mask(f"ping: {describe(error)}", [url, address.url])) from None
    if code >= 400:
        raise Undelivered(f"ping: answered {code}", is_permanent=code < 500)


def _parse(url: str) -> Address:
    try:
        return parse_address(url)
    except ValueError:
        raise Undelivered("ping_url: must start with https://", is_permanent=True) from None
