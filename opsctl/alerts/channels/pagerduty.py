"""Answers by PagerDuty: who has acknowledged the incident of an alert, read by the REST API."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from opsctl.alerts.answer import AnswerVerb, RawAnswer, list_objects
from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.message import find_incident
from opsctl.alerts.outbox import Undelivered
from opsctl.base.web import FAILURES, describe, fetch, open_session, parse_address
from opsctl.settings.alert_channels import AppriseTable
from opsctl.state.files import parse_json

TIMEOUT_S = 10.0
MAX_INCIDENTS = 20
"""Incidents that are read in one watch cycle, the newest first."""
MAX_BYTES = 1 << 20


def poll(channel: str, table: AppriseTable, messages: Sequence[str]) -> Iterator[RawAnswer]:
    """Yield an answer for each acknowledgement of the incidents that `messages` opened.

    Raises Undelivered, also behind the last answer if there are more incidents than are read.
    """
    token = reveal(table, "pagerduty_token")
    for message in sorted(messages, reverse=True)[:MAX_INCIDENTS]:
        try:
            incidents = _fetch_incidents(table, token, find_incident(message))
        except (*FAILURES, ValueError) as error:
            raise Undelivered(f"answers of {channel}: PagerDuty: " + mask(describe(error), [token])) from None
        for incident in incidents:
            yield from _read(incident, channel, message)
    if len(messages) > MAX_INCIDENTS:
        raise Undelivered(f"answers of {channel}: of {len(messages)} incidents, the newest {MAX_INCIDENTS} are read")


def _fetch_incidents(table: AppriseTable, token: str, key: str) -> list[dict[str, Any]]:
    """Return the acknowledged incidents with this key. Raises one of FAILURES, ValueError."""
    query = f"incident_key={quote(key, safe='')}&statuses[]=acknowledged&limit=5"
    address = parse_address(f"{table.pagerduty_api_url.rstrip('/')}/incidents?{query}")
    headers = {"Authorization": f"Token token={token}", "Accept": "application/vnd.pagerduty+json;version=2"}
    with fetch(open_session(), address, timeout=TIMEOUT_S, headers=headers) as response:
        if response.status != 200:
            raise ValueError(f"answered {response.status}")
        answer = parse_json(response.read(MAX_BYTES))
        return list_objects(answer.get("incidents") if isinstance(answer, dict) else None)


def _read(incident: dict[str, Any], channel: str, message: str) -> Iterator[RawAnswer]:
    for acknowledgement in list_objects(incident.get("acknowledgements")):
        person = acknowledgement.get("acknowledger")
        sender = str(person.get("id", "")) if isinstance(person, dict) else ""
        if sender:
            yield RawAnswer(
                id=f"{incident.get('id')}/{acknowledgement.get('at')}",
                channel=channel,
                message=message,
                sender=sender,
                text=AnswerVerb.ACK.value,
                is_confirmed=False,
            )
