"""The dead-man's switch: an outside service receives a ping per watch cycle and raises an alarm when pings stop."""

from enum import StrEnum
from urllib.parse import urlsplit

from opsctl.alerts.channel_secrets import mask
from opsctl.alerts.channels.webhook import parse_setting
from opsctl.alerts.outbox import Undelivered
from opsctl.base.web import FAILURES, describe, open_session
from opsctl.base.web import fetch as fetch_address

TIMEOUT_S = 10.0
START_TIMEOUT_S = 3.0
MAX_TEXT_BYTES = 10_000
"""healthchecks.io keeps this much of a ping's text."""


class PingKind(StrEnum):
    """What the ping reports, as the last part of the address that healthchecks.io expects."""

    SUCCESS = ""
    START = "/start"
    FAIL = "/fail"


def fetch(url: str, kind: PingKind = PingKind.SUCCESS, text: str = "") -> None:
    """Ping `url`, with `text` by POST. Raises Undelivered, whose text does not contain the address."""
    address = parse_setting("ping_url", _append(url, kind.value))
    timeout = START_TIMEOUT_S if kind is PingKind.START else TIMEOUT_S
    data = text.encode(errors="replace")[:MAX_TEXT_BYTES] if text else None
    try:
        with fetch_address(open_session(), address, timeout=timeout, data=data) as response:
            code = response.status
    except FAILURES as error:
        raise Undelivered(mask(f"ping: {describe(error)}", [url, address.url])) from None
    if code >= 400:
        raise Undelivered(f"ping: answered {code}", is_permanent=code < 500)


def _append(url: str, suffix: str) -> str:
    """Return the address with `suffix` at the end of its path, before a query such as `?create=1`."""
    if not suffix:
        return url
    parts = urlsplit(url)
    return parts._replace(path=parts.path.rstrip("/") + suffix).geturl()
