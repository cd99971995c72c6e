"""Who is alerted when: `[alerts.duty]`, `[[alerts.escalation]]` and `[[alerts.silences]]` of site.toml."""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, time
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from opsctl.settings.field_types import Hours, Name, SettingsTable

ON_DUTY, NEXT_ON_DUTY = "duty", "duty-next"
"""Names in place of a channel: the channels of the person on duty now, and of the next person of the rota."""
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _check_date(text: str) -> str:
    with suppress(ValueError):
        date.fromisoformat(text)
        return text
    raise ValueError(f"{text!r:.40} is not a date, such as 2026-01-05")


def _check_time(text: str) -> str:
    with suppress(ValueError):
        if time.fromisoformat(text).tzinfo is None:
            return text
    raise ValueError(f"{text!r:.40} is not a time of day, such as 09:00")


def _check_moment(text: str) -> str:
    with suppress(ValueError):
        datetime.fromisoformat(text)
        return text
    raise ValueError(f"{text!r:.40} is not a time, such as 2026-01-05 or 2026-01-05 14:00")


Moment = Annotated[str, AfterValidator(_check_moment)]


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
    def _in_order(self) -> OverrideTable:
        _check_order(self.since, self.until)
        return self


class DutyTable(SettingsTable):
    """`[alerts.duty]`: a rota. `duty` and `duty-next` in a list of channels name the person's channels."""

    people: dict[Name, tuple[str, ...]] = Field(description="channels of each person")
    rota: tuple[str, ...] = Field(min_length=1, description="people in their order")
    begin: Annotated[str, AfterValidator(_check_date)] = Field(
        description="first day of the first person, such as 2026-01-05"
    )
    handover: Annotated[str, AfterValidator(_check_time)] = Field("09:00", description="local time of the handover")
    days: int = Field(7, ge=1, description="length of a shift in days")
    overrides: tuple[OverrideTable, ...] = ()

    @model_validator(mode="after")
    def _people_exist(self) -> DutyTable:
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
    def _one_kind(self) -> PlannedSilence:
        if bool(self.hours) == bool(self.since and self.until) or bool(self.since) != bool(self.until):
            raise ValueError("needs either since and until, or hours")
        if self.since:
            _check_order(self.since, self.until)
        return self
