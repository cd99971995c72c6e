"""Alert channels: `[alerts.channels]` of site.toml, a table for each kind.

A secret is given by file (`password_file = "..."`) or by variable (`password = "$SMTP_PASSWORD"`). A secret in clear is
accepted only from a site.toml that other users cannot read.
"""

import json
import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from opsctl.settings.field_types import SettingsTable, must

VARIABLE = re.compile(r"\$\w+", re.ASCII)
PLACEHOLDER = r"\{\{\s*(\w+)\s*\}\}"
_SLACK_ID = re.compile(r"[CGD][A-Z0-9]{6,}", re.ASCII)
WEBHOOK_FIELDS = ("id", "thread", "at", "level", "subject", "body")


def _check_secret(value: object) -> object:
    # Checked before pydantic, whose own message would print the value.
    if not isinstance(value, str | SecretStr):
        raise ValueError("must be text")
    return value


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
IN_CLEAR = "$VARIABLE, or the secret in clear if only you can read site.toml"
Secret = Annotated[SecretStr, BeforeValidator(_check_secret)]
Address = Annotated[
    str,
    must(
        lambda text: "@" in text and text.isprintable() and not re.search(r"\s", text),
        "{!r:.80} is not a mail address",
    ),
]


class SecretTable(SettingsTable):
    """A table with secrets: each is a field, and the field with `_file` behind its name."""

    def has_secret(self, field: str) -> bool:
        return bool(getattr(self, field).get_secret_value() or getattr(self, f"{field}_file"))


class EmailTable(SecretTable):
    """`kind = "email"`: sent by SMTP, or by the machine's sendmail."""

    kind: Literal["email"] = Field(description="kind of the channel")
    to: tuple[Address, ...] = Field(min_length=1, description="mail addresses of the recipients")
    sender: Address = Field(description="mail address of the sender")
    server: str = Field("localhost", description="SMTP server")
    port: int | None = Field(
        None, ge=1, le=65535, description="port of the SMTP server; unset: 25, with starttls 587, with tls 465"
    )
    tls: Literal["none", "starttls", "tls"] = Field("none", description="encryption of the connection to the server")
    ca_file: str = Field("", description="file of CA certificates; empty: the machine's")
    user: str = Field("", description="login name at the SMTP server; empty: no login")
    password: Secret = Field(SecretStr(""), description=IN_CLEAR)
    password_file: str = Field("", description="file that contains the password")
    imap_server: str = Field("", description="IMAP server whose mails answer alerts; empty: no answers by mail")
    imap_port: int | None = Field(None, ge=1, le=65535, description="port of the IMAP server; unset: 993, else 143")
    imap_tls: Literal["none", "starttls", "tls"] = Field("tls", description="encryption of the IMAP connection")
    imap_user: str = Field("", description="login name at the IMAP server")
    imap_password: Secret = Field(SecretStr(""), description=IN_CLEAR)
    imap_password_file: str = Field("", description="file that contains the password at the IMAP server")
    imap_folder: str = Field("INBOX", description="folder with the answers; its mails stay unread")
    answer_key: Secret = Field(SecretStr(""), description=IN_CLEAR)
    answer_key_file: str = Field("", description="file with a random text that signs alerts: openssl rand -hex 32")
    authserv_id: str = Field(
        "",
        description="name of the mail server in its Authentication-Results headers: an answer counts only if this"
        " server has verified its sender, by DMARC, DKIM or login",
    )
    sendmail: str = Field("", description="program that sends the mail instead of SMTP, such as /usr/sbin/sendmail")

    @model_validator(mode="after")
    def _no_password_in_clear(self) -> Self:
        if self.user and self.tls == "none" and self.server not in LOOPBACK:
            raise ValueError(f'the password would go to {self.server} in clear: set tls = "starttls" or "tls"')
        return self

    @model_validator(mode="after")
    def _answers_are_safe(self) -> Self:
        if not self.imap_server:
            return self
        if not self.has_secret("answer_key"):
            raise ValueError("imap_server needs an answer_key_file: answers must carry a signature")
        if not self.authserv_id:
            raise ValueError("imap_server needs an authserv_id: anybody can write any sender into a mail")
        if '"' in self.imap_folder or not self.imap_folder.isprintable():
            raise ValueError(f"imap_folder: {self.imap_folder!r:.80} is not a folder")
        if self.imap_tls == "none" and self.imap_server not in LOOPBACK:
            raise ValueError(f"the password would go to {self.imap_server} in clear: set imap_tls to starttls or tls")
        return self


class SlackTable(SecretTable):
    """`kind = "slack"`: sent by an incoming webhook, or by a bot, which can reply in threads."""

    kind: Literal["slack"] = Field(description="kind of the channel")
    webhook: Secret = Field(SecretStr(""), description=IN_CLEAR)
    webhook_file: str = Field("", description="file that contains the URL of an incoming webhook")
    token: Secret = Field(SecretStr(""), description=IN_CLEAR)
    token_file: str = Field("", description="file that contains a bot's token; a bot can reply in threads")
    channel: str = Field("", description="channel to which the bot writes, such as #oncall or C0123456")
    reads_answers: bool = Field(
        default=False,
        description="read replies and reactions of the people in [alerts.people]; needs a bot with channels:history and"
        " reactions:read, and the channel as an id, such as C0123456",
    )
    api_url: str = Field("https://slack.com/api/", description="base URL of the Slack API; change for a proxy")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        webhook = self.has_secret("webhook")
        token = self.has_secret("token")
        if webhook == token:
            raise ValueError("needs either a webhook_file, or a token_file and a channel")
        if token and not self.channel:
            raise ValueError("a bot's token needs a channel to write to")
        if self.reads_answers and not (token and _SLACK_ID.fullmatch(self.channel)):
            raise ValueError("reads_answers needs a bot's token and the channel's id, such as C0123456")
        return self


class AppriseTable(SecretTable):
    """`kind = "apprise"`: Teams, PagerDuty, SMS and about a hundred other services, by one apprise URL."""

    kind: Literal["apprise"] = Field(description="kind of the channel")
    url: Secret = Field(SecretStr(""), description=IN_CLEAR)
    url_file: str = Field("", description="file that contains one apprise URL")
    pagerduty_token: Secret = Field(SecretStr(""), description=IN_CLEAR)
    pagerduty_token_file: str = Field(
        "",
        description="file with a read-only REST API token: an incident acknowledged in PagerDuty acknowledges the"
        " alert; needs a url of pagerduty://",
    )
    pagerduty_api_url: str = Field(
        "https://api.pagerduty.com",
        description="base URL of PagerDuty's REST API; https://api.eu.pagerduty.com in Europe",
    )

    @property
    def reads_answers(self) -> bool:
        return self.has_secret("pagerduty_token")

    @model_validator(mode="after")
    def _has_url(self) -> Self:
        if not self.has_secret("url"):
            raise ValueError("needs a url_file")
        _refuse_clear_token(self.pagerduty_api_url, "pagerduty_api_url", has_token=self.reads_answers)
        return self


class NtfyTable(SecretTable):
    """`kind = "ntfy"`: sent to a topic of ntfy, with buttons that answer the alert."""

    kind: Literal["ntfy"] = Field(description="kind of the channel")
    server: str = Field("https://ntfy.sh", description="address of the ntfy server")
    topic: Secret = Field(SecretStr(""), description=IN_CLEAR)
    topic_file: str = Field(
        "", description="file with the name of the topic; whoever knows the name can read the alerts"
    )
    token: Secret = Field(SecretStr(""), description=IN_CLEAR)
    token_file: str = Field(
        "", description="file with an access token, which may write `topic` and read `answer_topic`"
    )
    answer_topic: Secret = Field(SecretStr(""), description=IN_CLEAR)
    answer_topic_file: str = Field(
        "", description="file with the name of the topic to which the buttons post; unset: alerts have no buttons"
    )
    answer_token: Secret = Field(SecretStr(""), description=IN_CLEAR)
    answer_token_file: str = Field(
        "", description="file with an access token that may only write `answer_topic`; the buttons contain the token"
    )
    answer_key: Secret = Field(SecretStr(""), description=IN_CLEAR)
    answer_key_file: str = Field("", description="file with a random text that signs the buttons: openssl rand -hex 32")
    buttons: tuple[Literal["ack", "silence", "hold", "release"], ...] = Field(
        ("ack", "silence"), max_length=3, description="buttons of an alert, at most three"
    )

    @property
    def reads_answers(self) -> bool:
        return self.has_secret("answer_topic")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not self.has_secret("topic"):
            raise ValueError("needs a topic_file")
        if self.reads_answers and not self.has_secret("answer_key"):
            raise ValueError("answer_topic needs an answer_key_file: answers must carry a signature")
        _refuse_clear_token(self.server, "server", has_token=True)
        return self


def _refuse_clear_token(url: str, field: str, *, has_token: bool) -> None:
    """Refuse an address to which a secret would go in clear."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{field}: {url!r:.80} must start with https://")
    if has_token and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise ValueError(f"{field}: a secret would go to {parts.hostname} in clear: use https://")


class WebhookTable(SecretTable):
    """`kind = "webhook"`: JSON, sent to any web service by POST."""

    kind: Literal["webhook"] = Field(description="kind of the channel")
    url: Secret = Field(SecretStr(""), description=IN_CLEAR)
    url_file: str = Field("", description="file that contains the URL")
    authorization: Secret = Field(SecretStr(""), description=IN_CLEAR)
    authorization_file: str = Field("", description="file that contains the value of the Authorization header")
    template: str = Field(
        "",
        description=f"JSON to send, with {{{{ name }}}} for the text of a field: {', '.join(WEBHOOK_FIELDS)}; empty:"
        " an object with all fields",
    )

    @model_validator(mode="after")
    def _has_url(self) -> Self:
        if not self.has_secret("url"):
            raise ValueError("needs a url_file")
        return self

    @model_validator(mode="after")
    def _template_is_json(self) -> Self:
        if unknown := set(re.findall(PLACEHOLDER, self.template)) - set(WEBHOOK_FIELDS):
            raise ValueError(f"template: no field {', '.join(sorted(unknown))}; there are {', '.join(WEBHOOK_FIELDS)}")
        try:
            json.loads(re.sub(PLACEHOLDER, '""', self.template) or "{}")
        except ValueError as error:
            raise ValueError(f"template: not JSON: {error}; write {{{{ subject }}}} without quotes") from error
        return self


class FileTable(SettingsTable):
    """`kind = "file"`: append the alerts to a file."""

    kind: Literal["file"] = Field(description="kind of the channel")
    path: str = Field(description="path of the file")


class StdoutTable(SettingsTable):
    """`kind = "stdout"`: printed by the delivering process, such as `opsctl watch` in a terminal."""

    kind: Literal["stdout"] = Field(description="kind of the channel")


ChannelTable = Annotated[
    EmailTable | SlackTable | AppriseTable | NtfyTable | WebhookTable | FileTable | StdoutTable,
    Field(discriminator="kind"),
]
