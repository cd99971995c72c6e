"""Routes, duty, silences and timing of alerts: `[alerts]` of site.toml. alert_channels.py has the channels."""

from collections.abc import Iterator
from datetime import date, datetime, time
from string import Formatter
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from opsctl.settings.alert_channels import VARIABLE, ChannelTable, Secret
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

    person: str
    since: Moment
    until: Moment

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _check_order(self.since, self.until)
        return self


class DutyTable(SettingsTable):
    """`[alerts.duty]`: a rota. `duty` and `duty-next` in a list of channels name the person's channels."""

    people: dict[Name, tuple[str, ...]]
    rota: tuple[str, ...] = Field(min_length=1)
    begin: Annotated[str, must(date.fromisoformat, "{!r:.40} is not a date, such as 2026-01-05")]
    handover: Annotated[
        str,
        must(lambda text: time.fromisoformat(text).tzinfo is None, "{!r:.40} is not a time of day, such as 09:00"),
    ] = "09:00"
    days: int = Field(7, ge=1)
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

    after_minutes: float = Field(gt=0)
    channels: tuple[str, ...] = Field(min_length=1)
    severity: Literal["warning", "critical"] = "critical"


class PlannedSilence(SettingsTable):
    """`[[alerts.silences]]`: a maintenance window, or hours that recur."""

    keys: tuple[str, ...] = ("*",)
    trains: tuple[str, ...] = ("*",)
    reason: str = Field(min_length=1)
    since: Moment | Literal[""] = ""
    until: Moment | Literal[""] = ""
    hours: Hours = ""
    days: tuple[Day, ...] = DAYS

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.hours) == bool(self.since and self.until) or bool(self.since) != bool(self.until):
            raise ValueError("needs either since and until, or hours")
        if self.since:
            _check_order(self.since, self.until)
        return self


class RouteTable(SettingsTable):
    """Which alerts are sent to which channels. An alert is sent to every matching route."""

    channels: tuple[str, ...] = Field(min_length=1)
    severity: Literal["warning", "critical"] = "warning"
    trains: tuple[str, ...] = ("*",)
    keys: tuple[str, ...] = ("*",)
    quiet: Hours = ""


class AlertSettings(SettingsTable):
    """`[alerts]` of site.toml."""

    channels: dict[Name, ChannelTable] = Field({})
    people: dict[Name, tuple[str, ...]] = Field({})
    duty: DutyTable | None = None
    escalation: tuple[EscalationTable, ...] = ()
    silences: tuple[PlannedSilence, ...] = ()
    maintenance_reservations: bool = False
    site_name: str = Field("opsctl", min_length=1)
    link_base: tuple[str, ...] = ()
    routes: tuple[RouteTable, ...] = ()
    time_zone: TimeZone = ""
    fallback: str = ""
    fallback_hours: float = Field(1, gt=0)
    storm: int = Field(10, ge=2)
    warning_looks: int = Field(2, ge=1)
    critical_looks: int = Field(1, ge=1)
    hold_seconds: float = Field(0, ge=0)
    unknown_minutes: float = Field(60, ge=0)
    slurm_minutes: float = Field(15, ge=0)
    repeat_hours: tuple[float, ...] = (1, 4, 12, 24)
    repeat_warning_hours: tuple[float, ...] = (24, 168)
    flap_minutes: float = Field(60, ge=0)
    ping_url: Secret = SecretStr("")
    ping_url_file: str = ""
    ping_style: Literal["plain", "healthchecks"] = "plain"
    ping_train_url: Secret = SecretStr("")
    ping_train_url_file: str = ""

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
