"""Who is told of what, and when."""

import time
from datetime import UTC, datetime

import pytest

from opsctl.alerts.ledger_state import AlertTransition, Thread
from opsctl.alerts.routes import find_destinations, find_fallback, select_channels
from opsctl.model import Level, Transition
from opsctl.settings.alerts import AlertSettings
from opsctl.state.site_dir import SiteDir
from tests.unit.alerts.conftest import finding

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
TWO = {"mail": {"kind": "file", "path": "a"}, "team": {"kind": "file", "path": "b"}}


def noted(before, after, at=NOON, **more):
    transition = Transition(id="abc.1", finding=finding(after, **more), before=before, at=at)
    return AlertTransition(transition=transition, opened=at, was="")


def told(rules, each, thread=None):
    site = AlertSettings.model_validate({"channels": TWO, **rules})
    return find_destinations(each, site, site.channels, thread)


def by(*routes):
    return {"routes": routes}


def test_without_routes_everything_goes_everywhere():
    assert list(told({}, noted(Level.OK, Level.WARNING))) == ["mail", "team"]


def test_without_channels_it_goes_to_a_file_of_the_site(tmp_path):
    [(name, table)] = select_channels(AlertSettings(), SiteDir(tmp_path)).items()
    assert (name, table.path) == ("log", f"{tmp_path}/alerts/alerts.log")


def test_a_route_for_what_is_critical_takes_no_warnings():
    only_critical = by({"channels": ("mail",), "level": "critical"})
    assert told(only_critical, noted(Level.OK, Level.WARNING)) == {}
    assert list(told(only_critical, noted(Level.WARNING, Level.CRITICAL))) == ["mail"]


def test_who_was_told_that_it_is_critical_is_told_that_it_is_over():
    assert list(told(by({"channels": ("mail",), "level": "critical"}), noted(Level.CRITICAL, Level.OK))) == ["mail"]


def test_who_was_told_of_an_incident_is_told_how_it_goes_on_by_whatever_steps():
    rules = by({"channels": ("mail",), "level": "critical"})
    thread = Thread(at=NOON, roots={"mail": "abc.1"})
    assert list(told(rules, noted(Level.WARNING, Level.OK), thread)) == ["mail"]


def test_what_is_unknown_for_long_is_as_a_warning():
    assert list(told(by({"channels": ("mail",)}), noted(Level.OK, Level.UNKNOWN))) == ["mail"]


def test_routes_by_train_and_by_key():
    rules = by({"channels": ("mail",), "trains": ("big-*",)}, {"channels": ("team",), "keys": ("fs_quota/*",)})
    assert list(told(rules, noted(Level.OK, Level.CRITICAL, train="big-1"))) == ["mail"]
    assert list(told(rules, noted(Level.OK, Level.CRITICAL, train="", key="fs_quota/scratch"))) == ["team"]


@pytest.mark.parametrize(
    ("at", "sent"),
    [
        (datetime(2026, 6, 1, 19, 59, tzinfo=UTC), None),
        (datetime(2026, 6, 1, 20, 0, tzinfo=UTC), datetime(2026, 6, 2, 5, 0, tzinfo=UTC)),  # 22:00 in Paris
        (datetime(2026, 6, 2, 1, 0, tzinfo=UTC), datetime(2026, 6, 2, 5, 0, tzinfo=UTC)),
        (datetime(2026, 6, 2, 5, 0, tzinfo=UTC), None),
    ],
)
def test_in_quiet_hours_a_warning_waits_for_their_end(at, sent):
    rules = {"time_zone": "Europe/Paris"} | by({"channels": ("mail",), "quiet": "22:00-07:00"})
    assert told(rules, noted(Level.OK, Level.WARNING, at)) == {"mail": sent}


@pytest.mark.parametrize(("hour", "minute", "waits"), [(10, 59, False), (11, 0, True), (13, 29, True), (13, 30, False)])
def test_quiet_hours_may_lie_within_one_day(hour, minute, waits):
    rules = {"time_zone": "UTC"} | by({"channels": ("mail",), "quiet": "11:00-13:30"})
    end = NOON.replace(hour=13, minute=30)
    at = NOON.replace(hour=hour, minute=minute)
    assert told(rules, noted(Level.OK, Level.WARNING, at)) == {"mail": end if waits else None}


def test_what_is_critical_does_not_wait():
    rules = {"time_zone": "UTC"} | by({"channels": ("mail",), "quiet": "11:00-13:30"})
    assert told(rules, noted(Level.OK, Level.CRITICAL)) == {"mail": None}


def test_of_two_routes_to_one_channel_the_sooner_counts():
    rules = {"time_zone": "UTC"} | by({"channels": ("mail",), "quiet": "11:00-13:30"}, {"channels": ("mail",)})
    assert told(rules, noted(Level.OK, Level.WARNING)) == {"mail": None}


def test_the_fallback_is_the_sites_choice_else_the_next_that_does_not_have_it():
    site = AlertSettings.model_validate({"channels": TWO, "fallback": "team"})
    assert find_fallback(site, site.channels, "mail", ["mail"]) == "team"
    assert find_fallback(AlertSettings(), ["a", "b", "c"], "a", ["a", "b"]) == "c"
    assert find_fallback(AlertSettings(), ["a", "b"], "a", ["a", "b"]) is None


@pytest.mark.parametrize("zone", ["", "Europe/Paris"])
def test_quiet_hours_end_by_the_clock_of_the_morning_though_it_was_changed_in_the_night(zone, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    try:
        evening = datetime(2026, 10, 24, 21, 30, tzinfo=UTC)  # 23:30 in summer time; 07:00 is in winter time
        rules = {**by({"channels": ("mail",), "quiet": "22:00-07:00"}), "time_zone": zone}
        moments = told(rules, noted(Level.OK, Level.WARNING, evening))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert moments == {"mail": datetime(2026, 10, 25, 6, tzinfo=UTC)}
