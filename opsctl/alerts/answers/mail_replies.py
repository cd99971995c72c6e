"""Answers by mail, read over IMAP: replies to alerts, whose signed Message-IDs a reply carries back."""

from __future__ import annotations

import contextlib
import email
import imaplib
import logging
import re
import ssl
from collections.abc import Iterator
from datetime import datetime, timedelta
from email.message import EmailMessage
from email.policy import default
from email.utils import parseaddr

from opsctl.alerts.answers.answer import RawAnswer, verify
from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.outbox import Undelivered
from opsctl.settings.alerts import EmailTable

TIMEOUT_S = 10.0
MAX_MAILS = 50
"""Mails that are read in one watch cycle, the newest first."""
MAX_MAIL_BYTES = 64 << 10
LOOK_BACK = timedelta(days=2)
PORTS = {"tls": 993, "starttls": 143, "none": 143}
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
log = logging.getLogger(__name__)

_ID = re.compile(r"<([^<>@\s]+)@opsctl\.[^<>@\s]+>")


def poll(channel: str, table: EmailTable, now: datetime) -> list[RawAnswer]:
    """Return the replies of the last days to signed alerts. Mails stay unread. Raises Undelivered."""
    key, password = reveal(table, "answer_key"), reveal(table, "imap_password")
    try:
        with _connect(table) as connection:
            connection.login(table.imap_user, password)
            return list(_read(connection, table, channel, key, now))
    except (OSError, imaplib.IMAP4.error) as error:
        raise Undelivered(f"answers of {channel}: {table.imap_server}: " + mask(str(error), [password, key])) from None


def _connect(table: EmailTable) -> imaplib.IMAP4:
    port = table.imap_port or PORTS[table.imap_tls]
    trusted = ssl.create_default_context(cafile=table.ca_file or None) if table.imap_tls != "none" else None
    if table.imap_tls == "tls":
        return imaplib.IMAP4_SSL(table.imap_server, port, ssl_context=trusted, timeout=TIMEOUT_S)
    connection = imaplib.IMAP4(table.imap_server, port, timeout=TIMEOUT_S)
    if trusted:
        try:
            connection.starttls(trusted)
        except BaseException:
            connection.shutdown()
            raise
    return connection


def _read(connection: imaplib.IMAP4, table: EmailTable, channel: str, key: str, now: datetime) -> Iterator[RawAnswer]:
    code, _ = connection.select(f'"{table.imap_folder}"', readonly=True)
    if code != "OK":
        raise imaplib.IMAP4.error(f"no folder {table.imap_folder}")
    since = now - LOOK_BACK
    _, found = connection.search(None, "SINCE", f"{since.day}-{MONTHS[since.month - 1]}-{since.year}")
    for number in reversed((found[0] or b"").split()[-MAX_MAILS:]):
        _, parts = connection.fetch(number.decode(), f"(BODY.PEEK[]<0.{MAX_MAIL_BYTES}>)")
        for part in parts:
            if isinstance(part, tuple) and (answer := _parse(part[1], channel, key)):
                yield answer


def _parse(raw: bytes, channel: str, key: str) -> RawAnswer | None:
    """Return the answer in a mail; None for a mail that answers no alert of ours, and for automatic replies."""
    try:
        return _parse_reply(raw, channel, key)
    except Exception:  # noqa: BLE001 (the email package raises IndexError, AttributeError and more on broken headers)
        log.warning("%s: a mail with headers that cannot be parsed is skipped", channel)
        return None


def _parse_reply(raw: bytes, channel: str, key: str) -> RawAnswer | None:
    mail = email.message_from_bytes(raw, policy=default)
    assert isinstance(mail, EmailMessage)
    headers = f"{mail.get('In-Reply-To', '')} {mail.get('References', '')}"
    messages = [message for signed in _ID.findall(headers) if (message := verify(key, signed))]
    if not messages or mail.get("Auto-Submitted", "no").lower() != "no":
        return None
    text = ""
    with contextlib.suppress(KeyError, LookupError, UnicodeError, AssertionError):
        body = mail.get_body(("plain",))
        text = str(body.get_content()) if body else ""
    sender = parseaddr(str(mail.get("From", "")))[1]
    return RawAnswer(id=str(mail.get("Message-ID", "")), channel=channel, message=messages[0], sender=sender, text=text)
