"""Routes: which channels get an alert, and when."""

import time
from datetime import UTC, datetime

import pytest

from opsctl.alerts.ledger_state import AlertTransition, Thread
from opsctl.alerts.routes import find_destinations, find_fallback
from opsctl.base.findings import Severity, Transition
from opsctl.settings.alerts import AlertSettings
from tests.support.cases import read_cases
from tests.unit.alerts.conftest import World, finding

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
TWO = {"mail": {"kind": "file", "path": "a"}, "team": {"kind": "file", "path": "b"}}


def make_transition(before, after, at=NOON, **more):
    transition = Transition(id="abc.1", finding=finding(after, **more), before=before, at=at)
    return AlertTransition(transition=transition, opened=at)


def route(rules, transition, thread=None):
    site = AlertSettings.model_validate({"channels": TWO, **rules})
    return find_destinations(transition, site, site.channels, thread)


def with_routes(*routes):
    return {"routes": routes}


def test_default_route_is_every_channel():
    assert list(route({}, make_transition(Severity.OK, Severity.WARNING))) == ["mail", "team"]


def test_default_channel_is_a_file_of_the_site(tmp_path):
    [(name, table)] = World(tmp_path).alerting.channels.items()
    assert (name, table.path) == ("log", f"{tmp_path}/site/alerts/alerts.log")


def test_critical_route_takes_no_warnings():
    only_critical = with_routes({"channels": ("mail",), "severity": "critical"})
    assert route(only_critical, make_transition(Severity.OK, Severity.WARNING)) == {}
    assert list(route(only_critical, make_transition(Severity.WARNING, Severity.CRITICAL))) == ["mail"]


def test_critical_route_gets_the_recovery():
    rules = with_routes({"channels": ("mail",), "severity": "critical"})
    assert list(route(rules, make_transition(Severity.CRITICAL, Severity.OK))) == ["mail"]


def test_channel_of_an_incident_gets_its_recovery():
    rules = with_routes({"channels": ("mail",), "severity": "critical"})
    thread = Thread(at=NOON, roots={"mail": "abc.1"})
    assert list(route(rules, make_transition(Severity.WARNING, Severity.OK), thread)) == ["mail"]


def test_unknown_is_routed_like_a_warning():
    assert list(route(with_routes({"channels": ("mail",)}), make_transition(Severity.OK, Severity.UNKNOWN))) == ["mail"]


def test_routes_by_train_and_by_key():
    rules = with_routes({"channels": ("mail",), "trains": ("big-*",)}, {"channels": ("team",), "keys": ("fs_quota/*",)})
    assert list(route(rules, make_transition(Severity.OK, Severity.CRITICAL, train="big-1"))) == ["mail"]
    of_site = make_transition(Severity.OK, Severity.CRITICAL, train="", key="fs_quota/scratch")
    assert list(route(rules, of_site)) == ["team"]


@pytest.mark.parametrize(*read_cases(__file__, "warning_waits_for_the_end_of_quiet_hours"))
def test_warning_waits_for_the_end_of_quiet_hours(at, sent):
    rules = {"time_zone": "Europe/Paris"} | with_routes({"channels": ("mail",), "quiet": "22:00-07:00"})
    assert route(rules, make_transition(Severity.OK, Severity.WARNING, at)) == {"mail": sent}


@pytest.mark.parametrize(("hour", "minute", "waits"), [(10, 59, False), (11, 0, True), (13, 29, True), (13, 30, False)])
def test_quiet_hours_may_lie_within_one_day(hour, minute, waits):
    rules = {"time_zone": "UTC"} | with_routes({"channels": ("mail",), "quiet": "11:00-13:30"})
    end = NOON.replace(hour=13, minute=30)
    at = NOON.replace(hour=hour, minute=minute)
    assert route(rules, make_transition(Severity.OK, Severity.WARNING, at)) == {"mail": end if waits else None}


def test_critical_ignores_quiet_hours():
    rules = {"time_zone": "UTC"} | with_routes({"channels": ("mail",), "quiet": "11:00-13:30"})
    assert route(rules, make_transition(Severity.OK, Severity.CRITICAL)) == {"mail": None}


def test_earliest_route_to_a_channel_counts():
    rules = {"time_zone": "UTC"} | with_routes({"channels": ("mail",), "quiet": "11:00-13:30"}, {"channels": ("mail",)})
    assert route(rules, make_transition(Severity.OK, Severity.WARNING)) == {"mail": None}


def test_fallback_is_configured_or_the_next_channel():
    site = AlertSettings.model_validate({"channels": TWO, "fallback": "team"})
    assert find_fallback(site, site.channels, "mail", ["mail"]) == "team"
    assert find_fallback(AlertSettings(), ["a", "b", "c"], "a", ["a", "b"]) == "c"
    assert find_fallback(AlertSettings(), ["a", "b"], "a", ["a", "b"]) is None


@pytest.mark.parametrize("zone", ["", "Europe/Paris"])
def test_quiet_hours_end_by_local_clock_after_dst(zone, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    try:
        evening = datetime(2026, 10, 24, 21, 30, tzinfo=UTC)  # 23:30 in summer time; 07:00 is in winter time
        rules = {**with_routes({"channels": ("mail",), "quiet": "22:00-07:00"}), "time_zone": zone}
        moments = route(rules, make_transition(Severity.OK, Severity.WARNING, evening))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert moments == {"mail": datetime(2026, 10, 25, 6, tzinfo=UTC)}


def test_critical_channel_gets_no_warning_of_a_reopened_incident():
    rules = with_routes({"channels": ("mail",), "severity": "critical"}, {"channels": ("team",)})
    roots = {"mail": "abc.1", "team": "abc.1"}
    over = Thread(at=NOON, roots=roots, severities=dict.fromkeys(roots, Severity.OK))
    assert list(route(rules, make_transition(Severity.OK, Severity.WARNING), over)) == ["team"]
    again = Thread(at=NOON, roots=over.roots, severities={"mail": Severity.OK, "team": Severity.WARNING})
    assert list(route(rules, make_transition(Severity.WARNING, Severity.OK), again)) == ["team"]
