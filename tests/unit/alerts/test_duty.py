"""The duty roster, escalation, planned silences and maintenance."""

from datetime import UTC, datetime, timedelta

import pytest

from opsctl.alerts import dispatch
from opsctl.alerts.duty import expand_channels, find_shift, is_in_force
from opsctl.base.errors import ConfigError
from opsctl.base.findings import Severity
from opsctl.base.model import Reservation
from opsctl.monitor.alert_people import find_maintenance
from opsctl.settings.alerts import AlertSettings, PlannedSilence
from opsctl.settings.loader import parse
from tests.support.cases import read_cases
from tests.unit.alerts.conftest import finding

ROTA = {"people": {"anna": ("a",), "ben": ("b",)}, "rota": ("anna", "ben"), "begin": "2026-03-02"}
OVERRIDE = {"person": "ben", "since": "2026-03-03", "until": "2026-03-04 12:00"}
FILES = {name: {"kind": "file", "path": f"/nowhere/{name}"} for name in ("a", "b", "team")}


def make_rules(**fields):
    table = {"channels": FILES, "time_zone": "Europe/Paris", "duty": {**ROTA, **fields.pop("duty", {})}, **fields}
    return parse(AlertSettings, table, "site.toml")


def on_duty(rules, at):
    return find_shift(rules.duty, at, rules.time_zone).person


@pytest.mark.parametrize(*read_cases(__file__, "rota_hands_over_at_nine_by_local_clock"))
def test_rota_hands_over_at_nine_by_local_clock(at, person):
    assert on_duty(make_rules(), at) == person


def test_override_replaces_the_person_on_duty():
    rules = make_rules(duty={"overrides": (OVERRIDE,)})
    assert on_duty(rules, datetime(2026, 3, 3, 12, tzinfo=UTC)) == "ben"
    assert on_duty(rules, datetime(2026, 3, 4, 12, tzinfo=UTC)) == "anna"


def test_shift_ends_where_an_override_begins():
    rules, at = make_rules(duty={"overrides": (OVERRIDE,)}), datetime(2026, 3, 2, 12, tzinfo=UTC)
    shifts = []
    for _ in range(4):
        shifts.append(find_shift(rules.duty, at, rules.time_zone))
        at = shifts[-1].end
    assert [(shift.person, f"{shift.begin:%d %H}", f"{shift.end:%d %H}") for shift in shifts] == [
        ("anna", "02 09", "03 00"),
        ("ben", "03 00", "04 12"),
        ("anna", "04 12", "09 09"),
        ("ben", "09 09", "16 09"),
    ]


def test_duty_stands_for_the_channels_of_the_person():
    at = datetime(2026, 3, 3, tzinfo=UTC)
    assert expand_channels(["team", "duty"], make_rules(), at) == ["team", "a"]
    assert expand_channels(["duty-next"], make_rules(), at) == ["b"]


@pytest.mark.parametrize(*read_cases(__file__, "roster_with_a_mistake_is_refused"))
def test_roster_with_a_mistake_is_refused(fields, problem):
    with pytest.raises(ConfigError, match=problem):
        make_rules(**fields)


@pytest.fixture
def escalating(with_rules, tmp_path):
    channels = {name: {"kind": "file", "path": str(tmp_path / name)} for name in ("a", "b", "team")}
    return with_rules(
        channels=channels,
        duty={**ROTA, "begin": "2026-01-01", "handover": "00:00"},
        time_zone="UTC",
        routes=({"channels": ("duty",)},),
        escalation=(
            {"after_minutes": 15.0, "channels": ("duty-next",)},
            {"after_minutes": 30.0, "channels": ("team",)},
        ),
    )


def list_subjects(world, name):
    path = world.path / name
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.partition("] ")[2] for line in lines if line.startswith("20")]


def run_series(world, marks):
    for mark in marks:
        world.record(mark)
        dispatch.send_alerts(world.alerting)
        world.clock.forward(minutes=10)


def test_unacknowledged_alert_goes_to_the_next_person_then_to_all(escalating):
    run_series(escalating, "CC")
    assert (list_subjects(escalating, "a"), list_subjects(escalating, "b")) == (["CRITICAL: gpt: it is critical"], [])
    run_series(escalating, "CCC")
    assert list_subjects(escalating, "b") == ["NOT ACKNOWLEDGED: CRITICAL: gpt: it is critical"]
    assert list_subjects(escalating, "team") == ["NOT ACKNOWLEDGED: CRITICAL: gpt: it is critical"]
    run_series(escalating, ".")
    for name in ("a", "b", "team"):
        assert list_subjects(escalating, name)[-1] == "RESOLVED: gpt: it is ok"


def test_acknowledged_alert_and_warning_are_not_escalated(escalating):
    run_series(escalating, "C")
    escalating.ledger.ack("hang/gpt", "on it")
    run_series(escalating, "CCC")
    for _ in range(4):
        escalating.record("w", "loss/gpt")
        dispatch.send_alerts(escalating.alerting)
        escalating.clock.forward(minutes=10)
    assert list_subjects(escalating, "b") == []


@pytest.mark.parametrize(*read_cases(__file__, "hours_recur_on_the_days_on_which_they_begin"))
def test_hours_recur_on_the_days_on_which_they_begin(at, is_silent):
    silence = PlannedSilence(hours="23:00-02:00", days=("sun",), reason="backup")
    assert is_in_force(silence, at, "UTC") is is_silent


def test_silence_in_advance_begins_at_its_time(world):
    now = world.clock.now()
    world.ledger.silence("*", now + timedelta(hours=2), "power", since=now + timedelta(hours=1))
    assert world.record("C") == [".>C"]
    world.clock.forward(minutes=70)
    assert world.record("w", "loss/gpt", is_certain=True) == []
    world.clock.forward(minutes=60)
    assert world.record("w", "loss/gpt", is_certain=True) == [".>w"]


def test_reservation_for_maintenance_covers_its_nodes():
    now = datetime(2026, 3, 2, tzinfo=UTC)
    hour = timedelta(hours=1)
    maint = Reservation(
        name="m", start=now - hour, end=now + hour, nodes="n[1-2]", node_count=2, flags=("MAINT", "IGNORE_JOBS")
    )
    findings = [
        finding(Severity.CRITICAL, "node_health/gpt/n1", node="n1"),
        finding(Severity.CRITICAL, "node_health/gpt/n3", node="n3"),
        finding(Severity.WARNING, "slurm_status/gpt"),
        finding(Severity.CRITICAL, "hang/gpt"),
    ]
    assert find_maintenance(findings, [maint], now) == {"node_health/gpt/n1", "slurm_status/gpt"}
    assert find_maintenance(findings, [maint], now + hour) == set()
