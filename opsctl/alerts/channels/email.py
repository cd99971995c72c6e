"""Mail, by SMTP or by the machine's sendmail. Answers are replies to signed Message-IDs, read over IMAP."""

import contextlib
import email.policy
import hashlib
import imaplib
import logging
import re
import smtplib
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from email.message import EmailMessage
from email.parser import BytesHeaderParser
from email.utils import format_datetime, parseaddr, parsedate_to_datetime

from opsctl.alerts.answer import FORMS, RawAnswer, sign, verify
from opsctl.alerts.channel_secrets import mask, reveal
from opsctl.alerts.message import ANSWER_ID_PREFIX, Message
from opsctl.alerts.outbox import Undelivered
from opsctl.alerts.own_line import to_text
from opsctl.base.errors import MissingProgram
from opsctl.base.ports import Runner, TimedOut
from opsctl.base.tables import read_package_table
from opsctl.settings.alert_channels import EmailTable

LEADING_DOT = re.compile(rb"^\.", re.MULTILINE)
HOW_TO_ANSWER = f"Answer this mail with one of these, alone on the first line: {FORMS}\n"
_AUTOMATIC: dict[str, str] = read_package_table("alerts/answers.toml")["automatic_mail"]
PORTS = {"none": 25, "starttls": 587, "tls": 465}
SENDMAIL_TRY_AGAIN = {71, 73, 74, 75}
"""EX_OSERR, EX_CANTCREAT, EX_IOERR, EX_TEMPFAIL of sysexits.h; other exit codes are permanent."""
IMAP_TIMEOUT_S = 10.0
IMAP_PORTS = {"tls": 993, "starttls": 143, "none": 143}
MAX_MAILS = 50
"""Mails with our signature that are read in one watch cycle, the newest."""
MAX_LISTED = 5000
"""Mails in which our signature is looked for, the newest."""
LISTED_AT_ONCE = 200
MAX_MAIL_BYTES = 64 << 10
MAX_HEADER_CHARS = 4000
LOOK_BACK = timedelta(days=2)
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
log = logging.getLogger(__name__)
MAX_PROOF_CHARS = 10_000
MAX_AGE = timedelta(days=2)
"""By the Date header: an older mail is a copy that somebody has kept."""
ONCE = ("Content-Type", "Content-Transfer-Encoding", "MIME-Version")
"""Headers that say how a mail is read. A signature covers the lowest of several, and readers take the first."""
_FROM = re.compile(r'(?:[^<>",;:()@\\]{0,200}|"[^"\\]{0,200}")\s*<([^<>@\s",;:()]+@[\w.-]+)>|([^<>@\s",;:()]+@[\w.-]+)')
"""Exactly one address, with or without a name."""
_METHOD = re.compile(r"\s*(dmarc|dkim|auth)\s*=\s*pass(?![\w-])(.*)", re.IGNORECASE | re.DOTALL)
_PROPERTY = re.compile(r"([\w.-]{1,50})\s*=\s*([^\s;]{1,300})")
_SIGNED_ID = re.compile(r"<([^<>@\s]+)@opsctl\.[^<>@\s]+>")


class _BoundedHeaders(email.policy.EmailPolicy):
    """Cuts every header, also of parts: the time to parse one grows with the square of its length."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[:MAX_HEADER_CHARS]


class Email:
    def __init__(self, table: EmailTable, runner: Runner, *, timeout: float = 10.0) -> None:
        self._table, self._runner, self._timeout = table, runner, timeout
        self._password = reveal(table, "password")
        self._answer_key = reveal(table, "answer_key") if table.imap_server else ""

    def send(self, message: Message, *, reply_to: str = "") -> str:  # noqa: ARG002 (a mail's id is known beforehand)
        mail = self._mail(message)
        try:
            return self._by_sendmail(mail) if self._table.sendmail else self._by_smtp(mail)
        except Undelivered as error:
            raise Undelivered(
                mask(error.message, [self._password]), is_permanent=error.is_permanent, is_ambiguous=error.is_ambiguous
            ) from None

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage(policy=email.policy.SMTP)
        mail["From"] = self._table.sender
        mail["To"] = ", ".join(self._table.to)
        mail["Subject"] = message.subject
        mail["Date"] = format_datetime(message.at)
        mail["Message-ID"] = self._id(message.id)
        if message.root != message.id:
            mail["In-Reply-To"] = mail["References"] = self._id(message.root)
        mail["Auto-Submitted"] = "auto-generated"
        mail["X-Auto-Response-Suppress"] = "All"  # Exchange looks at this one
        body = f"{message.body}\n{HOW_TO_ANSWER}" if self._answer_key else message.body
        mail.set_content(body, cte="quoted-printable")
        return mail

    def _id(self, message: str) -> str:
        # Signed, so that only who got the mail can answer. The same in every try: Message-IDs must not change.
        if self._answer_key:
            message = f"{message}.{sign(self._answer_key, message)}"
        return f"<{message}@opsctl.{self._table.sender.rpartition('@')[2]}>"

    def _by_smtp(self, mail: EmailMessage) -> str:
        where = f"{self._table.server}:{self._table.port or PORTS[self._table.tls]}"
        connection = None
        try:
            connection = self._connect()
            refused = self._send_envelope(connection)
        except smtplib.SMTPResponseException as error:
            raise _refusal(where, error.smtp_code, error.smtp_error) from error
        except (smtplib.SMTPNotSupportedError, ssl.SSLCertVerificationError) as error:
            raise Undelivered(f"{where}: {error}", is_permanent=True) from error
        except (OSError, smtplib.SMTPException) as error:
            raise Undelivered(f"{where}: {error or type(error).__name__}") from error
        else:
            self._send_data(connection, mail, where)
            return refused
        finally:
            if connection:
                connection.close()

    def _connect(self) -> smtplib.SMTP:
        table, port = self._table, self._table.port or PORTS[self._table.tls]
        trusted = ssl.create_default_context(cafile=table.ca_file or None) if table.tls != "none" else None
        if table.tls == "tls":
            connection: smtplib.SMTP = smtplib.SMTP_SSL(table.server, port, timeout=self._timeout, context=trusted)
        else:
            connection = smtplib.SMTP(table.server, port, timeout=self._timeout)
        try:
            if table.tls == "starttls":
                connection.starttls(context=trusted)
            if table.user:
                connection.login(table.user, self._password)
        except BaseException:
            connection.close()
            raise
        return connection

    def _send_envelope(self, connection: smtplib.SMTP) -> str:
        """Send the envelope; return the addresses that were refused permanently while others were accepted."""
        connection.ehlo_or_helo_if_needed()
        code, reply = connection.mail(self._table.sender)
        if code != 250:
            raise smtplib.SMTPResponseException(code, reply)
        answers = {address: connection.rcpt(address) for address in self._table.to}
        bad = {address: answer for address, answer in answers.items() if answer[0] not in {250, 251}}
        later = [answer for answer in bad.values() if answer[0] < 500]
        # A temporary refusal postpones the whole mail: sending to the others now would send to them twice.
        if later or len(bad) == len(answers):
            raise smtplib.SMTPResponseException(*(later or list(bad.values()))[0])
        code, reply = connection.docmd("DATA")
        if code != 354:
            raise smtplib.SMTPResponseException(code, reply)
        return "; ".join(f"refused for {address}: {code} {_text(reply)}" for address, (code, reply) in bad.items())

    def _send_data(self, connection: smtplib.SMTP, mail: EmailMessage, where: str) -> None:
        try:
            connection.send(LEADING_DOT.sub(b"..", mail.as_bytes()) + b".\r\n")
            code, reply = connection.getreply()
        except (OSError, smtplib.SMTPException) as error:
            raise Undelivered(f"{where}: connection lost before the answer: {error}", is_ambiguous=True) from error
        if code != 250:
            raise _refusal(where, code, reply)
        with contextlib.suppress(OSError, smtplib.SMTPException):
            connection.quit()

    def _by_sendmail(self, mail: EmailMessage) -> str:
        argv = [self._table.sendmail, "-i", "-f", self._table.sender, "--", *self._table.to]
        text = mail.as_string(policy=mail.policy.clone(linesep="\n"))
        try:
            done = self._runner.run(argv, timeout=30, stdin=text)
        except MissingProgram as error:
            raise Undelivered(error.message, is_permanent=True) from error
        except TimedOut as error:
            raise Undelivered(str(error), is_ambiguous=True) from error
        if done.code:
            output = " ".join(done.err.split())
            is_permanent = done.code not in SENDMAIL_TRY_AGAIN
            raise Undelivered(f"{argv[0]}: exit {done.code}: {output}", is_permanent=is_permanent)
        return ""


def _refusal(where: str, code: int, reply: bytes | str) -> Undelivered:
    # smtplib uses code -1 for an answer without a code.
    return Undelivered(f"{where}: {code} {_text(reply)}", is_permanent=500 <= code < 600)


def _text(reply: bytes | str) -> str:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    return " ".join(text.split())


def poll(channel: str, table: EmailTable, now: datetime) -> Iterator[RawAnswer]:
    """Yield the replies of the last days to signed alerts. Mails stay unread.

    Raises Undelivered, also behind the last answer if there are more mails than are read.
    """
    key, password = reveal(table, "answer_key"), reveal(table, "imap_password")
    try:
        with _connect_imap(table) as connection:
            connection.login(table.imap_user, password)
            yield from _read(connection, table, channel, key, now)
    except (OSError, imaplib.IMAP4.error) as error:
        raise Undelivered(f"answers of {channel}: {table.imap_server}: " + mask(str(error), [password, key])) from None


def _connect_imap(table: EmailTable) -> imaplib.IMAP4:
    port = table.imap_port or IMAP_PORTS[table.imap_tls]
    trusted = ssl.create_default_context(cafile=table.ca_file or None) if table.imap_tls != "none" else None
    if table.imap_tls == "tls":
        return imaplib.IMAP4_SSL(table.imap_server, port, ssl_context=trusted, timeout=IMAP_TIMEOUT_S)
    connection = imaplib.IMAP4(table.imap_server, port, timeout=IMAP_TIMEOUT_S)
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
    numbers = (found[0] or b"").decode().split()
    signed = _list_signed(connection, numbers[-MAX_LISTED:], key)
    for number in signed[-MAX_MAILS:]:  # the oldest first: a later answer confirms
        _, parts = connection.fetch(number, f"(BODY.PEEK[]<0.{MAX_MAIL_BYTES}>)")
        for part in parts:
            if isinstance(part, tuple) and (answer := _parse(part[1], channel, key)):
                yield _with_proof(answer, part[1], table.authserv_id, now)
    if len(numbers) > MAX_LISTED or len(signed) > MAX_MAILS:
        raise imaplib.IMAP4.error(f"of {len(numbers)} mails, {len(signed)} of them answers, the newest are read")


def _list_signed(connection: imaplib.IMAP4, numbers: list[str], key: str) -> list[str]:
    """Return the mails that name an alert of ours: anybody can fill the mailbox with others."""
    signed = []
    fields = f"(BODY.PEEK[HEADER.FIELDS (In-Reply-To References)]<0.{2 * MAX_HEADER_CHARS}>)"
    for begin in range(0, len(numbers), LISTED_AT_ONCE):
        _, parts = connection.fetch(",".join(numbers[begin : begin + LISTED_AT_ONCE]), fields)
        for part in parts:
            if isinstance(part, tuple) and _find_alerts(part[1].decode(errors="replace"), key):
                signed.append(part[0].split()[0].decode())
    return signed


def _find_alerts(headers: str, key: str) -> list[str]:
    """Return the ids of our messages that the headers name with our signature."""
    return [message for signed in _SIGNED_ID.findall(headers) if (message := verify(key, signed))]


def _with_proof(answer: RawAnswer, raw: bytes, server: str, now: datetime) -> RawAnswer:
    """Return the answer with a sender that the mail server has verified, or one that nobody is listed with.

    By sender and date, a mail that is sent again is the same answer, whatever its other headers say: few signatures
    cover those that name the alert, the encoding and the parts.
    """
    try:
        sender = find_sender(raw, server, now)
    except Exception:  # noqa: BLE001 (as above)
        sender = ""
    date = BytesHeaderParser().parsebytes(raw).get("Date", "")
    digest = hashlib.sha256(repr((sender, str(date))).encode(errors="replace"))
    return replace(answer, sender=sender or f"not verified: {answer.sender}", id=digest.hexdigest())


def _parse(raw: bytes, channel: str, key: str) -> RawAnswer | None:
    """Return the answer in a mail; None for a mail that answers no alert of ours, and for automatic replies."""
    try:
        return _parse_reply(raw, channel, key)
    except Exception:  # noqa: BLE001 (the email package raises IndexError, AttributeError and more on broken headers)
        log.warning("%s: a mail with headers that cannot be parsed is skipped", channel)
        return None


def _parse_reply(raw: bytes, channel: str, key: str) -> RawAnswer | None:
    mail = email.message_from_bytes(raw, policy=_BoundedHeaders())
    assert isinstance(mail, EmailMessage)
    messages = _find_alerts(f"{mail.get('In-Reply-To', '')} {mail.get('References', '')}", key)
    if not messages or _is_automatic(mail):
        return None
    sender = parseaddr(str(mail.get("From", "")))[1]
    # A reply to a confirmation names that mail first, and the alert behind it.
    alerts = [message for message in messages if not message.startswith(ANSWER_ID_PREFIX)]
    id = str(mail.get("Message-ID", "")) or hashlib.sha256(raw).hexdigest()
    return RawAnswer(id=id, channel=channel, message=[*alerts, *messages][0], sender=sender, text=_read_text(mail))


def _is_automatic(mail: EmailMessage) -> bool:
    for name, form in _AUTOMATIC.items():
        if any(re.fullmatch(form, str(value).strip(), re.IGNORECASE) for value in mail.get_all(name, ())):
            return True
    return False


def _read_text(mail: EmailMessage) -> str:
    """Return the plain text of a mail, or else the text of its HTML; empty if neither can be decoded."""
    for kind in ("plain", "html"):
        with contextlib.suppress(KeyError, LookupError, UnicodeError, AssertionError):
            body = mail.get_body((kind,))
            content = str(body.get_content()) if body else ""
            text = to_text(content) if kind == "html" else content
            if text.strip():
                return text
    return ""


def find_sender(raw: bytes, server: str, now: datetime) -> str:
    """Return the address of the sender of a fresh mail; empty unless `server` has verified the address or its domain.

    What a mail says of itself proves nothing. Only the topmost Authentication-Results header of `server` counts: those
    below may have come with the mail.
    """
    mail = BytesHeaderParser().parsebytes(raw)  # parts within parts would recurse
    if any(len(mail.get_all(name, ())) > 1 for name in ONCE):
        return ""
    senders = [" ".join(str(value)[:MAX_PROOF_CHARS].split()) for value in mail.get_all("From", ())]
    match = _FROM.fullmatch(senders[0]) if len(senders) == 1 else None
    if match is None or not _is_fresh(mail.get_all("Date", ()), now):
        return ""
    address = (match[1] or match[2]).lower()
    for value in mail.get_all("Authentication-Results", ()):
        text = str(value)[:MAX_PROOF_CHARS].lower()
        if text.partition(";")[0].split()[:1] == [server.lower()]:
            return address if any(_proves(result, address) for result in _drop_texts(text).split(";")[1:]) else ""
    return ""


def _is_fresh(dates: Sequence[object], now: datetime) -> bool:
    try:
        [date] = dates  # a signature covers the lowest of several
        return abs(now - parsedate_to_datetime(str(date)[:100])) <= MAX_AGE
    except (ValueError, TypeError, IndexError):  # no date, or without a time zone
        return False


def _drop_texts(value: str) -> str:
    """Return a header without comments and quoted texts, which hold what the sender likes."""
    outside, depth, is_quoted, is_escaped = [], 0, False, False
    for character in value:
        if is_escaped or character == "\\":
            is_escaped = not is_escaped
            continue
        if character == '"' and not depth:
            is_quoted = not is_quoted
        elif not is_quoted and character in "()":
            depth = depth + 1 if character == "(" else max(0, depth - 1)
        elif not is_quoted and not depth:
            outside.append(character)
    return "".join(outside)


def _proves(result: str, address: str) -> bool:
    """Whether one result is a pass for the domain of the address, or for the address itself."""
    match = _METHOD.match(result)
    if match is None:
        return False
    pairs, domain = _PROPERTY.findall(match[2]), address.rpartition("@")[2]
    facts = dict(pairs)
    if len(facts) < len(pairs):
        return False  # which of two values was verified is unknown
    if match[1] == "auth":
        return facts.get("smtp.auth") == address
    if match[1] == "dmarc":
        return facts.get("header.from") == domain
    signer = facts.get("header.d") or facts.get("header.i", "").rpartition("@")[2]
    return "." in signer and (domain == signer or domain.endswith(f".{signer}"))
