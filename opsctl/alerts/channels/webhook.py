"""Any web service that takes JSON by POST, with a template for its form of a message."""

import json
import re
from collections.abc import Callable, Mapping
from http.client import HTTPMessage, HTTPResponse

from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.message import Message
from opsctl.alerts.outbox import Undelivered
from opsctl.base.ports import Runner
from opsctl.base.web import FAILURES, Address, describe, fetch, open_session, parse_address, read_retry_after_s
from opsctl.settings.alert_channels import PLACEHOLDER, WebhookTable
from opsctl.settings.field_types import OLD_SEVERITY

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1000
TRY_AGAIN = frozenset({408, 425, 429})


class Webhook:
    def __init__(self, table: WebhookTable, runner: Runner, *, timeout: float = TIMEOUT_S) -> None:  # noqa: ARG002 (every channel takes a runner)
        self._table, self._timeout = table, timeout
        self._url, self._authorization = reveal(table, "url"), reveal(table, "authorization")
        self._address = parse_setting("url", self._url)

    def send(self, message: Message, *, reply_to: str = "") -> str:  # noqa: ARG002 (the template may pass the thread)
        headers = {"Idempotency-Key": message.id}
        if self._authorization:
            headers["Authorization"] = self._authorization
        post_json(
            self._address, fill(self._table.template, message), headers=headers, timeout=self._timeout, hide=self._mask
        )
        return ""

    def _mask(self, text: str) -> str:
        token = self._authorization.rpartition(" ")[2]  # an error may quote the token without its scheme
        return "webhook: " + mask(text, [self._url, self._address.url, self._authorization, token])


def parse_setting(name: str, url: str) -> Address:
    """Return the address in a setting. Raises Undelivered, whose text does not contain the address."""
    try:
        return parse_address(url)
    except ValueError:
        raise Undelivered(f"{name}: must start with https://", is_permanent=True) from None


def authorize(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def post_json(
    address: Address, body: str, *, headers: Mapping[str, str], timeout: float, hide: Callable[[str], str]
) -> None:
    """Send JSON by POST. Raises Undelivered, whose text has passed through `hide`."""
    fields = {"Content-Type": "application/json", **headers}
    try:
        with fetch(open_session(), address, timeout=timeout, headers=fields, data=body.encode()) as response:
            _check(response, hide)
    except FAILURES as error:
        is_refused = isinstance(getattr(error, "reason", error), ConnectionRefusedError)
        raise Undelivered(hide(describe(error)), is_ambiguous=not is_refused) from None


def _check(response: HTTPResponse, hide: Callable[[str], str]) -> None:
    code = response.status
    if 200 <= code < 300:
        return
    text = response.read(MAX_ANSWER_BYTES).decode(errors="replace")
    raise judge_status(code, response.headers, text, hide)


def judge_status(
    code: int, headers: Mapping[str, object] | HTTPMessage, text: str, hide: Callable[[str], str]
) -> Undelivered:
    """Return what an HTTP status other than success means for a delivery, on every channel that uses HTTP."""
    return Undelivered(
        hide(f"answered {code} {' '.join(text.split())}".strip()),
        is_permanent=300 <= code < 500 and code not in TRY_AGAIN,
        is_ambiguous=code in {200, 502, 504},
        retry_after=read_retry_after_s(headers),
    )


def fill(template: str, message: Message) -> str:
    """Return the template with every placeholder replaced by the field as JSON text; without a template, all fields."""
    fields = {
        "id": message.id,
        "thread": message.root,
        "at": message.at.isoformat(),
        "severity": message.severity.value,
        "subject": message.subject,
        "body": message.body,
    }
    if not template:
        return json.dumps(fields)
    fields[OLD_SEVERITY] = fields["severity"]
    return re.sub(PLACEHOLDER, lambda match: json.dumps(fields[match[1]]), template)
