"""The duty roster, and silences planned in site.toml. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

from opsctl.base.findings import Finding
from opsctl.settings.alerts import DAYS, NEXT_ON_DUTY, ON_DUTY, AlertSettings, DutyTable, PlannedSilence
from opsctl.settings.field_types import parse_hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """Who is on duty until when, in local time."""

    person: str
    begin: datetime
    end: datetime
    is_override: bool = False


def expand_channels(names: Iterable[str], rules: AlertSettings, at: datetime) -> list[str]:
    """Return the names with the channels of the people on duty in place of `duty` and `duty-next`."""
    expanded: list[str] = []
    for name in names:
        if rules.duty and name in {ON_DUTY, NEXT_ON_DUTY}:
            person = find_shift(rules.duty, at, rules.time_zone).person
            if name == NEXT_ON_DUTY:
                person = _next_person(rules.duty, person)
            expanded += rules.duty.people[person]
        else:
            expanded.append(name)
    return list(dict.fromkeys(expanded))


def find_shift(duty: DutyTable, at: datetime, zone_name: str) -> Shift:
    """Return the shift at a time. Before the rota begins, the first person is on duty."""
    zone = ZoneInfo(zone_name) if zone_name else None
    local = at.astimezone(zone)
    for override in duty.overrides:
        begin, end = _local(override.since, zone), _local(override.until, zone)
        if begin <= local < end:
            return Shift(person=override.person, begin=begin, end=end, is_override=True)
    handover, first = time.fromisoformat(duty.handover), date.fromisoformat(duty.begin)
    # By the calendar and not by seconds: a handover keeps its hour when clocks change.
    day = local.date() - timedelta(days=local.time() < handover)
    number = max(0, (day - first).days // duty.days)
    first_day = first + timedelta(days=number * duty.days)
    begin, end = (_place(datetime.combine(first_day + timedelta(days=days), handover), zone) for days in (0, duty.days))
    for override in duty.overrides:
        since, until = _local(override.since, zone), _local(override.until, zone)
        if local < since < end:
            end = since
        if begin < until <= local:
            begin = until
    return Shift(person=duty.rota[number % len(duty.rota)], begin=begin, end=end)


def _next_person(duty: DutyTable, person: str) -> str:
    if person not in duty.rota:
        return duty.rota[0]
    return duty.rota[(duty.rota.index(person) + 1) % len(duty.rota)]


def find_planned_silence(finding: Finding, rules: AlertSettings, at: datetime) -> PlannedSilence | None:
    for silence in rules.silences:
        is_meant = any(fnmatchcase(finding.key, pattern) for pattern in silence.keys) and any(
            fnmatchcase(finding.train, pattern) for pattern in silence.trains
        )
        if is_meant and is_in_force(silence, at, rules.time_zone):
            return silence
    return None


def is_in_force(silence: PlannedSilence, at: datetime, zone_name: str) -> bool:
    zone = ZoneInfo(zone_name) if zone_name else None
    local = at.astimezone(zone)
    if silence.since:
        return _local(silence.since, zone) <= local < _local(silence.until, zone)
    begin, end = parse_hours(silence.hours)
    is_over_midnight = end < begin
    began_yesterday = is_over_midnight and local.time() < end
    is_within = began_yesterday or (begin <= local.time() and (is_over_midnight or local.time() < end))
    weekday = (local - timedelta(days=began_yesterday)).weekday()
    return is_within and DAYS[weekday] in silence.days


def _local(text: str, zone: ZoneInfo | None) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else _place(moment, zone)


def _place(moment: datetime, zone: ZoneInfo | None) -> datetime:
    return moment.replace(tzinfo=zone) if zone else moment.astimezone()
