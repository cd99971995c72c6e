"""Routes, duty, silences and timing of alerts: `[alerts]` of site.toml. alert_channels.py has the channels."""

from collections.abc import Iterator
from datetime import date, datetime, time
from string import Formatter
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from opsctl.settings.alert_channels import IN_CLEAR, VARIABLE, ChannelTable, Secret
from opsctl.settings.field_types import Hours, Name, SettingsTable, TimeZone, must

ON_DUTY, NEXT_ON_DUTY = "duty", "duty-next"
"""Names in place of a channel: the channels of the person on duty now, and of the next person of the rota."""
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


Moment = Annotated[str, must(datetime.fromisoformat, "{!r:.40} is not a time, such as 2026-01-05 or 2026-01-05 14:00")]


def _check_order(since: str, until: str) -> None:
    begin, end = datetime.fromisoformat(since), datetime.fromisoformat(until)
    if (begin.tzinfo is None) != (end.tzinfo is None):
        raise ValueError("since and until must be both with a time zone, or both without")
    if begin >= end:
        raise ValueError("until is not after since")


class OverrideTable(SettingsTable):
    """`[[alerts.duty.overrides]]`: another person for some time."""

    person: str = Field(description="name of the person")
    since: Moment = Field(description="begin, in local time, such as 2026-01-05 or 2026-01-05 14:00")
    until: Moment = Field(description="end")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _check_order(self.since, self.until)
        return self


class DutyTable(SettingsTable):
    """`[alerts.duty]`: a rota. `duty` and `duty-next` in a list of channels name the person's channels."""

    people: dict[Name, tuple[str, ...]] = Field(description="channels of each person")
    rota: tuple[str, ...] = Field(min_length=1, description="people in their order")
    begin: Annotated[str, must(date.fromisoformat, "{!r:.40} is not a date, such as 2026-01-05")] = Field(
        description="first day of the first person, such as 2026-01-05"
    )
    handover: Annotated[
        str,
        must(lambda text: time.fromisoformat(text).tzinfo is None, "{!r:.40} is not a time of day, such as 09:00"),
    ] = Field("09:00", description="local time of the handover")
    days: int = Field(7, ge=1, description="length of a shift in days")
    overrides: tuple[OverrideTable, ...] = ()

    @model_validator(mode="after")
    def _people_exist(self) -> Self:
        named = {*self.rota, *(override.person for override in self.overrides)}
        if unknown := sorted(named - set(self.people)):
            raise ValueError(f"no person {', '.join(map(repr, unknown))} in people")
        if mute := sorted(person for person in named if not self.people[person]):
            raise ValueError(f"{', '.join(mute)} has no channels: name at least one in people")
        return self


class EscalationTable(SettingsTable):
    """`[[alerts.escalation]]`: more channels for an alert that nobody acknowledges."""

    after_minutes: float = Field(gt=0, description="minutes without an acknowledgement at the severity")
    channels: tuple[str, ...] = Field(min_length=1, description="names of channels, or duty, or duty-next")
    level: Literal["warning", "critical"] = Field("critical", description="lowest severity that is escalated")


class PlannedSilence(SettingsTable):
    """`[[alerts.silences]]`: a maintenance window, or hours that recur."""

    keys: tuple[str, ...] = Field(("*",), description="patterns of finding keys, such as fs_quota/*")
    trains: tuple[str, ...] = Field(("*",), description="patterns of train names; alerts of no train match *")
    reason: str = Field(min_length=1, description="reason, shown with the silence")
    since: Moment | Literal[""] = Field("", description="begin of a maintenance window, such as 2026-01-05 14:00")
    until: Moment | Literal[""] = Field("", description="end of a maintenance window")
    hours: Hours = Field("", description="recurring hours, such as 02:00-04:00")
    days: tuple[Day, ...] = Field(DAYS, description="days on which recurring hours begin")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.hours) == bool(self.since and self.until) or bool(self.since) != bool(self.until):
            raise ValueError("needs either since and until, or hours")
        if self.since:
            _check_order(self.since, self.until)
        return self


class RouteTable(SettingsTable):
    """Which alerts are sent to which channels. An alert is sent to every matching route."""

    channels: tuple[str, ...] = Field(min_length=1, description="names of channels")
    level: Literal["warning", "critical"] = Field("warning", description="lowest severity that the route accepts")
    trains: tuple[str, ...] = Field(("*",), description="patterns of train names")
    keys: tuple[str, ...] = Field(("*",), description="patterns of finding keys, such as hang/*")
    quiet: Hours = Field(
        "", description="quiet hours, such as 22:00-07:00: only critical alerts are sent, the others after the end"
    )


class AlertSettings(SettingsTable):
    """`[alerts]` of site.toml."""

    channels: dict[Name, ChannelTable] = Field(
        {}, description="channels by name; without any, alerts go to a file in the site directory"
    )
    people: dict[Name, tuple[str, ...]] = Field(
        {},
        description="people who may answer alerts, by name: mail addresses, user ids of Slack and PagerDuty, and"
        " ntfy:CHANNEL for an ntfy channel to which only this person subscribes",
    )
    duty: DutyTable | None = Field(None, description="the duty roster; unset: none")
    escalation: tuple[EscalationTable, ...] = ()
    silences: tuple[PlannedSilence, ...] = ()
    maintenance_reservations: bool = Field(
        default=False,
        description="send nothing about nodes in a Slurm reservation with the flag MAINT, nor about waits meanwhile",
    )
    site_name: str = Field("opsctl", min_length=1, description="name of the site in the subject of alerts")
    link_base: tuple[str, ...] = Field(
        (),
        description="addresses that alerts link to, such as https://hub.example/{train}/report.html; {train} and {key}"
        " are replaced",
    )
    routes: tuple[RouteTable, ...] = Field((), description="routes; without any, every alert goes to every channel")
    time_zone: TimeZone = Field(
        "", description="time zone of the messages and of the quiet hours; empty: the machine's"
    )
    fallback: str = Field("", description="channel to use when another fails; empty: the next channel in the list")
    fallback_hours: float = Field(1, gt=0, description="hours without delivery after which the fallback is used")
    storm: int = Field(
        10, ge=2, description="from this many transitions in one watch cycle on, send a single combined alert"
    )
    warning_looks: int = Field(
        2, ge=1, description="consecutive watch cycles that must find a warning before an alert is sent"
    )
    critical_looks: int = Field(
        1, ge=1, description="consecutive watch cycles that must find a critical problem before an alert is sent"
    )
    hold_seconds: float = Field(0, ge=0, description="seconds that a warning must last before an alert is sent")
    unknown_minutes: float = Field(60, ge=0, description="minutes of unknown state after which an alert is sent")
    slurm_minutes: float = Field(
        15, ge=0, description="minutes without an answer of Slurm after which an alert is sent"
    )
    repeat_hours: tuple[float, ...] = Field(
        (1, 4, 12, 24), description="hours after which the alert of a problem that stays critical is repeated"
    )
    repeat_warning_hours: tuple[float, ...] = Field(
        (24, 168), description="hours after which the alert of a problem that stays a warning is repeated"
    )
    flap_minutes: float = Field(
        60,
        ge=0,
        description="a problem that returns within this many minutes needs more good watch cycles to be resolved",
    )
    ping_url: Secret = Field(SecretStr(""), description=IN_CLEAR)
    ping_url_file: str = Field("", description="file that contains the URL to fetch after every complete watch cycle")
    ping_style: Literal["plain", "healthchecks"] = Field(
        "plain",
        description="healthchecks: as healthchecks.io has it, also URL/start before a cycle, URL/fail after an"
        " incomplete one, each with a text; plain: only the URL after a complete cycle",
    )
    ping_train_url: Secret = Field(SecretStr(""), description=IN_CLEAR)
    ping_train_url_file: str = Field(
        "",
        description="file that contains the URL of a check for each train, with {train} for its name; URL/fail after a"
        " cycle with a critical finding",
    )

    @model_validator(mode="after")
    def _channels_exist(self) -> Self:
        named: set[str] = set()
        for names in (*(route.channels for route in self.routes), *(step.channels for step in self.escalation)):
            named.update(names)
        if self.duty:
            named -= {ON_DUTY, NEXT_ON_DUTY}
            named.update(*self.duty.people.values())
        if self.fallback:  # one channel, so not the several of a person on duty
            named.add(self.fallback)
        if unknown := sorted(named - set(self.channels)):
            known = ", ".join(self.channels) or "none"
            raise ValueError(f"no channel {', '.join(map(repr, unknown))} in [alerts.channels]; there are: {known}")
        return self

    @model_validator(mode="after")
    def _hours_are_positive(self) -> Self:
        for name in ("repeat_hours", "repeat_warning_hours"):
            if any(hours <= 0 for hours in getattr(self, name)):
                raise ValueError(f"{name}: every number must be more than 0")
        return self

    @model_validator(mode="after")
    def _links_are_filled(self) -> Self:
        for link in self.link_base:
            try:
                fields = {tuple(field) for _, *field in Formatter().parse(link) if field[0] is not None}
            except ValueError:
                fields = {("", "", "")}
            if not fields <= {("train", "", None), ("key", "", None)}:
                raise ValueError(f"link_base: {link!r:.80}: only {{train}} and {{key}} are replaced")
        return self

    def in_clear(self) -> Iterator[str]:
        """Yield the keys whose secret is in the file itself, such as `alerts.channels.mail.password`."""
        tables: dict[str, SettingsTable] = {f"alerts.channels.{name}": table for name, table in self.channels.items()}
        for place, table in ({"alerts": self} | tables).items():
            for field in type(table).model_fields:
                value = getattr(table, field)
                if isinstance(value, SecretStr) and value and not VARIABLE.fullmatch(value.get_secret_value()):
                    yield f"{place}.{field}"
