"""Alert channels: `[alerts.channels]` of site.toml, a table for each kind.

A secret is given by file (`password_file = "..."`) or by variable (`password = "$SMTP_PASSWORD"`). A secret in clear is
accepted only from a site.toml that other users cannot read.
"""

import json
import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from opsctl.settings.field_types import OLD_SEVERITY, SettingsTable, must

VARIABLE = re.compile(r"\$\w+", re.ASCII)
PLACEHOLDER = r"\{\{\s*(\w+)\s*\}\}"
_SLACK_ID = re.compile(r"[CGD][A-Z0-9]{6,}", re.ASCII)
WEBHOOK_FIELDS = ("id", "thread", "at", "severity", "subject", "body")


def _check_secret(value: object) -> object:
    # Checked before pydantic, whose own message would print the value.
    if not isinstance(value, str | SecretStr):
        raise ValueError("must be text")
    return value


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
Secret = Annotated[
    SecretStr,
    BeforeValidator(_check_secret),
    Field(description="$VARIABLE, or the secret in clear if only you can read site.toml"),
]
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

    kind: Literal["email"]
    to: tuple[Address, ...] = Field(min_length=1)
    sender: Address
    server: str = "localhost"
    port: int | None = Field(None, ge=1, le=65535)
    tls: Literal["none", "starttls", "tls"] = "none"
    ca_file: str = ""
    user: str = ""
    password: Secret = SecretStr("")
    password_file: str = ""
    imap_server: str = ""
    imap_port: int | None = Field(None, ge=1, le=65535)
    imap_tls: Literal["none", "starttls", "tls"] = "tls"
    imap_user: str = ""
    imap_password: Secret = SecretStr("")
    imap_password_file: str = ""
    imap_folder: str = "INBOX"
    answer_key: Secret = SecretStr("")
    answer_key_file: str = ""
    authserv_id: str = ""
    sendmail: str = ""

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

    kind: Literal["slack"]
    webhook: Secret = SecretStr("")
    webhook_file: str = ""
    token: Secret = SecretStr("")
    token_file: str = ""
    channel: str = ""
    reads_answers: bool = False
    api_url: str = "https://slack.com/api/"

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

    kind: Literal["apprise"]
    url: Secret = SecretStr("")
    url_file: str = ""
    pagerduty_token: Secret = SecretStr("")
    pagerduty_token_file: str = ""
    pagerduty_api_url: str = "https://api.pagerduty.com"

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

    kind: Literal["ntfy"]
    server: str = "https://ntfy.sh"
    topic: Secret = SecretStr("")
    topic_file: str = ""
    token: Secret = SecretStr("")
    token_file: str = ""
    answer_topic: Secret = SecretStr("")
    answer_topic_file: str = ""
    answer_token: Secret = SecretStr("")
    answer_token_file: str = ""
    answer_key: Secret = SecretStr("")
    answer_key_file: str = ""
    buttons: tuple[Literal["ack", "silence", "hold", "release"], ...] = Field(("ack", "silence"), max_length=3)

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

    kind: Literal["webhook"]
    url: Secret = SecretStr("")
    url_file: str = ""
    authorization: Secret = SecretStr("")
    authorization_file: str = ""
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
        if unknown := set(re.findall(PLACEHOLDER, self.template)) - {*WEBHOOK_FIELDS, OLD_SEVERITY}:
            raise ValueError(f"template: no field {', '.join(sorted(unknown))}; there are {', '.join(WEBHOOK_FIELDS)}")
        try:
            json.loads(re.sub(PLACEHOLDER, '""', self.template) or "{}")
        except ValueError as error:
            raise ValueError(f"template: not JSON: {error}; write {{{{ subject }}}} without quotes") from error
        return self


class FileTable(SettingsTable):
    """`kind = "file"`: append the alerts to a file."""

    kind: Literal["file"]
    path: str


class StdoutTable(SettingsTable):
    """`kind = "stdout"`: printed by the delivering process, such as `opsctl watch` in a terminal."""

    kind: Literal["stdout"]


ChannelTable = Annotated[
    EmailTable | SlackTable | AppriseTable | NtfyTable | WebhookTable | FileTable | StdoutTable,
    Field(discriminator="kind"),
]
