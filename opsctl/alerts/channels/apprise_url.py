"""Every other service, through apprise: one URL names the service, the address and the credentials."""

import logging

import apprise

from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.message import Message, find_incident
from opsctl.alerts.outbox import Undelivered
from opsctl.base.findings import Severity
from opsctl.base.ports import Runner
from opsctl.settings.alert_channels import AppriseTable

TYPES = {
    Severity.OK: apprise.NotifyType.SUCCESS,
    Severity.UNKNOWN: apprise.NotifyType.WARNING,
    Severity.WARNING: apprise.NotifyType.WARNING,
    Severity.CRITICAL: apprise.NotifyType.FAILURE,
}
INCIDENTS = {"pagerduty": "action=map&dedup={}", "opsgenie": "action=map&alias={}"}
"""Services with incidents, and the URL options that let RESOLVED close the incident."""


class ByUrl:
    def __init__(self, table: AppriseTable, runner: Runner) -> None:  # noqa: ARG002 (every channel takes a runner)
        self._url = reveal(table, "url")
        _URLS.add(self._url)
        # The log is captured because apprise logs the address.
        with _capture_log():
            is_known = apprise.Apprise().add(self._url)
        if not is_known:
            raise Undelivered(
                "url: unknown to apprise; the part before :// must name a service of apprise", is_permanent=True
            )

    def send(self, message: Message, *, reply_to: str = "") -> str:  # noqa: ARG002 (threads go by the URL)
        with _capture_log() as log:
            service = apprise.Apprise()
            service.add(self._address(message))
            is_sent = service.notify(
                title=message.subject,
                body=message.body,
                notify_type=TYPES[message.severity],
                body_format=apprise.NotifyFormat.TEXT,
            )
            why = " ".join(log.getvalue().split())
        if not is_sent:
            # Apprise reports no details: the service may have taken the message.
            raise Undelivered(mask(why or "apprise could not send it", _URLS), is_ambiguous=True)
        return ""

    def _address(self, message: Message) -> str:
        scheme = self._url.partition("://")[0].lower()
        if scheme not in INCIDENTS:
            return self._url
        incident = find_incident(message.root)
        return f"{self._url}{'&' if '?' in self._url else '?'}{INCIDENTS[scheme].format(incident)}"


_URLS: set[str] = set()
"""The addresses of all channels of this process, which no error may contain."""
logging.getLogger("apprise").propagate = False  # the log quotes addresses


def _capture_log() -> apprise.LogCapture:
    return apprise.LogCapture(level=logging.WARNING, fmt="%(message)s")  # type: ignore[no-untyped-call]  # apprise is typed in part
