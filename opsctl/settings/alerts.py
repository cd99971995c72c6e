"""Who is told what, and by which way: `[alerts]` of site.toml.

A secret is named by file (`password_file = "..."`) or by variable (`password = "$SMTP_PASSWORD"`). In clear it is taken
only from a file that nobody else can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import time
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from opsctl.settings.field_types import Name, SettingsTable, TimeZone

VARIABLE = re.compile(r"\$\w+", re.ASCII)
_HOURS = re.compile(r"(\d\d:\d\d)-(\d\d:\d\d)", re.ASCII)


def _check_secret(value: object) -> object:
    # Here, so that pydantic never gets to print what it was given.
    if not isinstance(value, str | SecretStr):
        raise ValueError("needs to be text")
    return value


def _check_hours(text: str) -> str:
    if text:
        parse_hours(text)
    return text


def _check_mail(text: str) -> str:
    if "@" not in text or any(c.isspace() or not c.isprintable() for c in text):
        raise ValueError(f"{text!r:.80} is not a mail address")
    return text


def parse_hours(text: str) -> tuple[time, time]:
    """`22:00-07:00` as its two times. Raises ValueError."""
    match = _HOURS.fullmatch(text)
    try:
        begin, end = (time.fromisoformat(group) for group in match.groups()) if match else (time(), time())
    except ValueError:
        begin = end = time()
    if begin == end:
        raise ValueError(f"{text!r:.40} is not a span of hours, such as 22:00-07:00")
    return begin, end


IN_CLEAR = "as $VARIABLE; in clear only where nobody else can read site.toml"
Secret = Annotated[SecretStr, BeforeValidator(_check_secret)]
Hours = Annotated[str, AfterValidator(_check_hours)]
Address = Annotated[str, AfterValidator(_check_mail)]


class EmailTable(SettingsTable):
    """`kind = "email"`: by SMTP, or by the machine's own sendmail."""

    kind: Literal["email"] = Field(description="which way")
    to: tuple[Address, ...] = Field(min_length=1, description="mail addresses")
    sender: Address = Field(description="whom it is from")
    server: str = Field("localhost", description="the SMTP server that takes the mail")
    port: int | None = Field(None, ge=1, le=65535, description="unset: 25, with starttls 587, with tls 465")
    tls: Literal["none", "starttls", "tls"] = Field("none", description="how the connection to the server is encrypted")
    ca_file: str = Field("", description="certificates to trust instead of the machine's own")
    user: str = Field("", description="to log in as; empty: no login")
    password: Secret = Field(SecretStr(""), description=IN_CLEAR)
    password_file: str = Field("", description="a file with the password")
    sendmail: str = Field("", description="a program to hand the mail to instead, such as /usr/sbin/sendmail")

    @model_validator(mode="after")
    def _no_password_in_clear(self) -> EmailTable:
        if self.user and self.tls == "none" and self.server not in {"localhost", "127.0.0.1", "::1"}:
            raise ValueError(f'the password would go to {self.server} in clear: set tls = "starttls" or "tls"')
        return self


class SlackTable(SettingsTable):
    """`kind = "slack"`: by an incoming webhook, or by a bot's token, which can answer in threads."""

    kind: Literal["slack"] = Field(description="which way")
    webhook: Secret = Field(SecretStr(""), description=IN_CLEAR)
    webhook_file: str = Field("", description="a file with the URL of an incoming webhook")
    token: Secret = Field(SecretStr(""), description=IN_CLEAR)
    token_file: str = Field("", description="a file with a bot's token, which can answer in threads")
    channel: str = Field("", description="where a bot writes to, such as #oncall or C0123456")
    api_url: str = Field("https://slack.com/api/", description="to be changed where a proxy is used")

    @model_validator(mode="after")
    def _one_way(self) -> SlackTable:
        webhook = bool(self.webhook.get_secret_value() or self.webhook_file)
        token = bool(self.token.get_secret_value() or self.token_file)
        if webhook == token:
            raise ValueError("needs either a webhook_file, or a token_file and a channel")
        if token and not self.channel:
            raise ValueError("a bot's token needs a channel to write to")
        return self


class AppriseTable(SettingsTable):
    """`kind = "apprise"`: Teams, PagerDuty, SMS and some hundred others, by one URL each (apprise's own list)."""

    kind: Literal["apprise"] = Field(description="which way")
    url: Secret = Field(SecretStr(""), description=IN_CLEAR)
    url_file: str = Field("", description="a file with one URL, as apprise writes it")

    @model_validator(mode="after")
    def _has_url(self) -> AppriseTable:
        if not (self.url.get_secret_value() or self.url_file):
            raise ValueError("needs a url_file")
        return self


class FileTable(SettingsTable):
    """`kind = "file"`: appended to a file."""

    kind: Literal["file"] = Field(description="which way")
    path: str = Field(description="of the file")


class StdoutTable(SettingsTable):
    """`kind = "stdout"`: printed by whoever delivers, such as the watch in a terminal."""

    kind: Literal["stdout"] = Field(description="which way")


ChannelTable = Annotated[EmailTable | SlackTable | AppriseTable | FileTable | StdoutTable, Field(discriminator="kind")]


class RouteTable(SettingsTable):
    """Who is told of what. A message goes by every route that it fits."""

    channels: tuple[str, ...] = Field(min_length=1, description="names of channels")
    level: Literal["warning", "critical"] = Field("warning", description="takes what is at least this bad")
    trains: tuple[str, ...] = Field(("*",), description="patterns of trains' names")
    keys: tuple[str, ...] = Field(("*",), description="patterns of findings' keys, such as hang/*")
    quiet: Hours = Field("", description="hours in which only what is critical is sent; the rest waits for their end")


class AlertSettings(SettingsTable):
    """`[alerts]` of site.toml."""

    channels: dict[Name, ChannelTable] = Field({}, description="without any, a file in the site's directory")
    routes: tuple[RouteTable, ...] = Field((), description="without any, everything goes to every channel")
    time_zone: TimeZone = Field("", description="of the quiet hours; empty: the machine's")
    fallback: str = Field("", description="the channel to try where another fails; empty: the next one of the list")
    fallback_hours: float = Field(1, gt=0, description="after this long without delivery, the fallback is tried")
    storm: int = Field(10, ge=2, description="this many changes in one look, or more, become one message")
    warning_looks: int = Field(
        2, ge=1, description="how many looks in a row must find a warning before people are told"
    )
    critical_looks: int = Field(1, ge=1, description="the same for what is critical")
    hold_seconds: float = Field(0, ge=0, description="and how long a warning must last before people are told")
    unknown_minutes: float = Field(60, ge=0, description="people are told of what could not be looked at for this long")
    repeat_hours: tuple[float, ...] = Field(
        (1, 4, 12, 24), description="people are told again of what stays critical, after these"
    )
    flap_minutes: float = Field(
        60, ge=0, description="what comes back within this needs more and more good looks to be over"
    )
    ping_url: Secret = Field(SecretStr(""), description=IN_CLEAR)
    ping_url_file: str = Field("", description="a file with the URL that is fetched after every complete cycle")

    @model_validator(mode="after")
    def _channels_exist(self) -> AlertSettings:
        named = [*(name for route in self.routes for name in route.channels), *filter(None, [self.fallback])]
        problems = []
        if unknown := sorted(set(named) - set(self.channels)):
            known = ", ".join(self.channels) or "none"
            problems.append(f"no channel {', '.join(map(repr, unknown))} in [alerts.channels]; there are: {known}")
        if any(hours <= 0 for hours in self.repeat_hours):
            problems.append("repeat_hours: each needs to be more than 0")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def in_clear(self) -> Iterator[str]:
        """Where a secret stands in the file itself, such as `alerts.channels.mail.password`."""
        tables: dict[str, SettingsTable] = {f"alerts.channels.{name}": table for name, table in self.channels.items()}
        for place, table in ({"alerts": self} | tables).items():
            for field in type(table).model_fields:
                value = getattr(table, field)
                if isinstance(value, SecretStr) and value and not VARIABLE.fullmatch(value.get_secret_value()):
                    yield f"{place}.{field}"
