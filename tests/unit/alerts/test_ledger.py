"""Findings become transitions: once, damped, and without loss."""

import errno
import json
import tomllib
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.alerts import dispatch, ledger_state
from opsctl.alerts.ledger_files import ledger_path
from opsctl.alerts.ledger_state import Thread
from opsctl.base.errors import InputError, RunDirError
from opsctl.base.findings import Severity
from opsctl.settings.alerts import AlertSettings
from opsctl.settings.loader import parse
from opsctl.state.files import write_atomic
from opsctl.state.lease import lease
from tests.unit.alerts.conftest import Clock, World, finding, format_change

SERIES = tomllib.loads((Path(__file__).parents[2] / "corpus" / "alerts" / "series.toml").read_text())["case"]


@pytest.mark.parametrize("case", SERIES, ids=lambda case: case["name"])
def test_series_of_findings_makes_transitions(world, case):
    world.rules = parse(AlertSettings, case.get("rules", {}), "site.toml")
    if minutes := case.get("silence_minutes"):
        world.ledger.silence("hang/*", world.clock.now() + timedelta(minutes=minutes), "maintenance")
    assert world.record_series(case["marks"]) == case["changes"].split()


def test_certain_warning_needs_one_cycle(world):
    assert world.record("w", is_certain=True) == [".>w"]
    assert world.record("w", is_certain=True) == []


def test_silent_slurm_is_alerted_after_a_quarter_of_an_hour(world):
    changes = []
    for _ in range(3):
        changes.append(world.record("?", "slurm/site"))
        world.clock.forward(minutes=8)
    assert changes == [[], [], [".>?"]]


def test_absent_key_keeps_its_severity(world):
    world.record("C")
    assert world.ledger.record([]) == []
    assert world.ledger.entries()["hang/gpt"].severity is Severity.CRITICAL


def test_repeats_become_rarer(world):
    changes = world.record_series("C" * 50, minutes=60)
    assert [hour for hour, change in enumerate(changes) if change == "C>C"] == [1, 5, 17, 41]


def test_repeat_reports_that_the_state_is_unknown(world):
    world.record("C")
    world.clock.forward(hours=2)
    [repeat] = world.ledger.record([finding(Severity.UNKNOWN, summary="the node does not answer")])
    assert repeat.finding.severity is Severity.CRITICAL
    assert repeat.finding.lines[0] == "now unknown: the node does not answer"


def test_empty_repeat_hours_repeat_nothing(with_rules):
    assert set(with_rules(repeat_hours=()).record_series("C" * 50, minutes=60)[1:]) == {"-"}


def test_flapping_is_damped(world):
    changes = world.record_series("C." * 100)
    assert sum(change == ".>C" for change in changes) == 2
    assert sum(change == "C>." for change in changes) == 1


def test_recurrence_after_hours_is_a_new_incident(world):
    world.record_series("C.")
    world.clock.forward(hours=3)
    world.record("C")
    assert world.ledger.entries()["hang/gpt"].flaps == 0


def test_ids_of_an_incident_share_a_prefix(world):
    transitions = world.ledger.record([finding(Severity.CRITICAL)]) + world.ledger.record([finding(Severity.OK)])
    ids = [transition.id for transition in transitions]
    incident = ids[0].partition(".")[0]
    assert ids == [f"{incident}.1", f"{incident}.2"]


def test_worst_finding_of_a_key_counts(world):
    [transition] = world.ledger.record([finding(Severity.CRITICAL), finding(Severity.OK)])
    assert transition.finding.severity is Severity.CRITICAL


def test_recovery_within_a_silence_is_sent_afterwards(world):
    world.record("C")
    world.ledger.silence("hang/gpt", world.clock.now() + timedelta(minutes=15), "on it")
    assert world.record_series("...") == ["-", "-", "C>."]


def test_silence_stops_repeats(world):
    world.record("C")
    world.ledger.silence("hang/gpt", world.clock.now() + timedelta(hours=30), "on it")
    assert not any(world.record("C") for _ in range(29) if not world.clock.forward(hours=1))
    world.clock.forward(hours=2)
    assert len(world.record("C")) == 1


def test_silence_applies_to_its_pattern_only(world):
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=1), "maintenance")
    assert world.record("C", key="fs_quota/scratch") == [".>C"]


def test_silence_can_be_ended(world):
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=1), "maintenance")
    world.ledger.silence("hang/*", world.clock.now(), "")
    assert world.ledger.read().in_force(world.clock.now()) == []
    assert world.record("C") == [".>C"]


def test_acknowledged_alert_is_not_repeated(world):
    world.record("C")
    world.ledger.ack("hang/gpt", "on it")
    assert set(world.record_series("C" * 30, minutes=60)) == {"-"}


def test_acknowledged_alert_reports_changes(world):
    world.record_series("ww")
    world.ledger.ack("hang/gpt", "on it")
    assert world.record_series("C.") == ["w>C", "C>."]
    assert world.ledger.entries()["hang/gpt"].acknowledged is None


def test_only_open_alerts_can_be_acknowledged(world):
    world.record(".")
    with pytest.raises(InputError, match=r"^hang/gpt: ok, nothing to acknowledge$"):
        world.ledger.ack("hang/gpt", "on it")
    with pytest.raises(InputError, match=r"^no alert 'hang/gtp'; did you mean 'hang/gpt'\?$"):
        world.ledger.ack("hang/gtp", "on it")


def test_silences_and_acknowledgements_are_journalled(world):
    world.record("C")
    world.ledger.silence("x", world.clock.now() + timedelta(hours=1), "maintenance")
    world.ledger.ack("hang/gpt", "on it")
    [journal] = world.site.alerts.glob("journal-*.jsonl")
    kinds = [json.loads(line)["kind"] for line in journal.read_text().splitlines()]
    assert kinds == ["silence", "ack"]


def test_sent_transition_is_journalled(world):
    world.record("C")
    [batch] = world.ledger.read().pending
    dispatch.send_alerts(world.alerting)
    [journal] = world.site.alerts.glob("journal-*.jsonl")
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [row["id"] for row in rows if row["kind"] == "transition"] == [batch.changes[0].transition.id]


def test_long_or_invalid_text_is_cut(world):
    garbage = "\x00\x1b[31m\udcff\ud800<&>" + "x" * 5000
    world.record("C", summary="a\nb", evidence=(garbage,) * 500)
    entry = world.ledger.entries()["hang/gpt"]
    assert entry.finding.summary == "a b"
    assert len(entry.finding.evidence) == 101
    assert entry.finding.lines[-1] == "and 400 more lines"
    assert max(map(len, entry.finding.evidence)) == 1000


def test_broken_ledger_is_set_aside(world):
    world.record("C")
    (world.site.alerts / "ledger.json").write_text('{"entries": {"hang/gpt": ')
    assert world.record("C") == [".>C"]
    assert (world.site.alerts / "ledger.broken").exists()


def test_ledger_from_before_severities_is_read(world):
    world.record("C")
    written = ledger_state.parse(ledger_path(world.site).read_bytes())
    written.threads["a"] = Thread(at=world.clock.now(), roots={"mail": "a.1"}, severities={"mail": Severity.CRITICAL})
    old = ledger_state.dump(written).replace('severity":', 'level":').replace('"severities":', '"levels":')
    assert (ledger_state.parse(old), old.count("level")) == (written, 5)


def test_ledger_of_texts_is_read(world):
    world.record("C")
    ledger = json.loads(ledger_path(world.site).read_bytes())
    texts = {"summary": "it hangs", "done": ["drained n1"], "remedy": "look", "rollback": ""}
    ledger["entries"]["hang/gpt"]["finding"] = {"key": "hang/gpt", "level": "critical", **texts}
    finding = ledger_state.parse(json.dumps(ledger)).entries["hang/gpt"].finding
    assert (finding.summary, finding.done, finding.remedy) == ("it hangs", ("drained n1",), "look")
    assert finding.rollback == ""


def test_unwritable_ledger_without_spare_fails(world):
    world.path.joinpath("site").write_text("a file, not a directory")
    world.path.joinpath("spare").write_text("another")
    with pytest.raises(RunDirError, match=r"Not a directory|File exists"):
        world.record("C")


def test_removed_spare_ledger_stops_nothing(world):
    spare = replace(world.ledger, site=world.spare, spare=None)
    with spare.open():
        pass  # creates an empty spare ledger
    competitor = ExitStack()
    competitor.enter_context(lease(world.spare.alerts, world.clock))

    def remove_spare(_seconds):
        ledger_path(spare.site).unlink()
        competitor.close()

    clock = Clock()
    clock.sleep = remove_spare
    changes = replace(world.ledger, clock=clock).record([finding(Severity.CRITICAL)])
    assert [format_change(transition) for transition in changes] == [".>C"]


def test_key_without_findings_for_a_month_is_dropped(world):
    world.record("C", key="hang/removed")
    for _ in range(2):
        world.clock.forward(days=31)
        world.record(".")
    assert list(world.ledger.entries()) == ["hang/gpt"]


def test_clock_that_was_ahead_delays_no_repeat(world):
    world.clock.forward(days=1)
    world.record("C")
    world.clock.forward(days=-1)
    assert world.record_series("CCC", minutes=60) == ["-", "C>C", "-"]


@pytest.mark.parametrize("skew", [90, -90, 86400])
def test_skewed_clocks_neither_lose_nor_duplicate(tmp_path, skew):
    first_world, second_world = World(tmp_path), World(tmp_path, clock=Clock())
    second_world.clock.forward(seconds=skew)
    changes = []
    for cycle in range(12):
        for world in (first_world, second_world):
            changes += world.record("C" if cycle < 6 else ".")
            world.clock.forward(minutes=5)
    assert changes[0] == ".>C"
    assert changes[-1] == "C>."
    assert set(changes[1:-1]) <= {"C>C"}  # for a clock a day ahead, a repeat is due
    assert len(changes) - 2 <= (1 if abs(skew) < 100 else 6)


def test_name_with_a_surrogate_is_replaced(world):
    odd = replace(finding(Severity.CRITICAL), key="train/\udcff", train="\udcff")
    [transition] = world.ledger.record([odd])
    assert transition.finding.key == "train/\N{REPLACEMENT CHARACTER}"
    assert transition.finding.train == "\N{REPLACEMENT CHARACTER}"
    assert world.ledger.record([odd]) == []


def test_lasting_warning_is_repeated_after_a_day_then_weekly(world):
    assert world.record_series("ww") == ["-", ".>w"]
    changes = world.record_series("w" * 24 * 15, minutes=60)
    hours = [hour for hour, change in enumerate(changes) if change != "-"]
    assert hours == [24, 24 + 168]


def test_clock_that_is_years_ahead_forgets_no_open_alert(world):
    world.record("C", "hang/gpt")
    world.clock.forward(days=4000)
    world.record(".", "disk/root")
    world.clock.forward(days=-4000, minutes=10)
    world.record(".", "disk/root")
    assert world.ledger.entries()["hang/gpt"].severity is Severity.CRITICAL


@pytest.mark.parametrize("behind_s", [90, 6 * 3600])
def test_clock_behind_that_of_the_alert_resolves_nothing(world, behind_s):
    world.record("C")
    world.clock.forward(seconds=-behind_s)
    assert world.record(".") == []
    world.clock.forward(minutes=10)
    assert world.record(".") == ["C>."]


def test_slow_cycle_that_began_before_the_alert_resolves_nothing(world):
    began_at = world.clock.now()
    world.clock.forward(minutes=1)
    world.record("C", "hang/gpt")
    world.clock.forward(minutes=1)
    slow = replace(world.ledger, observed_at=began_at)
    assert slow.record([finding(Severity.OK)]) == []
    world.clock.forward(minutes=10)
    assert world.record(".", "hang/gpt") == ["C>."]


def test_alert_pending_in_the_spare_ledger_is_not_recorded_again(world):
    """On a full disk, one watcher finds a free block and another one none."""
    world.record(".")
    blocked = world.path / "blocked"
    blocked.write_text("a file, not a directory")
    other = replace(world.ledger, site=replace(world.site, path=blocked))
    world.clock.forward(minutes=10)
    assert len(other.record([finding(Severity.CRITICAL)])) == 1
    assert world.record("C") == []
    world.clock.forward(minutes=10)
    assert world.record(".") == ["C>."]


def test_alert_of_the_spare_ledger_can_be_acknowledged(world):
    blocked = world.path / "blocked"
    blocked.write_text("a file, not a directory")
    other = replace(world.ledger, site=replace(world.site, path=blocked))
    other.record([finding(Severity.CRITICAL)])
    world.ledger.ack("hang/gpt", "on it")
    world.clock.forward(hours=2)
    assert world.record("C") == []
    assert world.ledger.entries()["hang/gpt"].acknowledged is not None


def test_ledger_of_another_user_does_not_continue_elsewhere(world, monkeypatch):
    world.record("C")
    monkeypatch.setattr("opsctl.alerts.ledger.lease", _refuse)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(RunDirError):
        world.ledger.ack("hang/gpt", "on it")
    assert not world.spare.path.joinpath("alerts/ledger.json").exists()


def _refuse(directory, clock):
    raise RunDirError(f"{directory}: cannot be locked: Permission denied")


def test_newer_ledger_counts_whatever_the_clocks_say(world, monkeypatch):
    """The spare ledger continues on a node whose clock is behind, or by a time that stands still."""
    world.record(".")
    other = World(world.path, clock=replace(world.clock))
    other.clock.forward(minutes=-1)
    with monkeypatch.context() as patch:
        patch.setattr("opsctl.state.site_dir.write_atomic", _refuse_below(world.site.path))
        assert other.record("C") == [".>C"]
    assert world.record("C") == []


def _refuse_below(full):
    def write(path, data, *, mode):
        if path.is_relative_to(full):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomic(path, data, mode=mode)

    return write


def test_finding_from_before_the_end_of_an_alert_reopens_nothing(world):
    world.record("C")
    world.clock.forward(minutes=10)
    slow = world.ledger.begin_cycle()
    clock = replace(world.clock)
    clock.forward(seconds=-60)  # of another node, still within what clocks may differ by
    assert len(replace(world.ledger, clock=clock).record([finding(Severity.OK)])) == 1
    assert slow.record([finding(Severity.CRITICAL)]) == []
    world.clock.forward(minutes=30)
    assert world.record(".") == []
    assert world.record("C") == [".>C"]
