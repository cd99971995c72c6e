"""Findings become transitions: once, damped, and none is lost."""

import json
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest

from opsctl.alerts import dispatch
from opsctl.errors import InputError, RunDirError
from opsctl.model import Level
from opsctl.state.lease import lease
from tests.unit.alerts.conftest import Clock, World, finding, said


def test_what_was_always_fine_is_not_told(world):
    assert world.story("....") == ["-", "-", "-", "-"]


def test_critical_is_told_at_once_and_once(world):
    assert world.story(".CCC") == ["-", ".>C", "-", "-"]


def test_a_first_look_that_is_critical_is_told(world):
    assert world.story("C") == [".>C"]


def test_it_is_told_when_it_is_over(world):
    assert world.story("C.") == [".>C", "C>."]


def test_a_warning_must_hold_for_two_looks(world):
    assert world.story("w.w.ww") == ["-", "-", "-", "-", "-", ".>w"]


def test_a_warning_of_what_has_happened_needs_no_second_look(world):
    assert world.see("w", is_certain=True) == [".>w"]
    assert world.see("w", is_certain=True) == []


def test_a_warning_must_hold_for_as_long_as_the_site_says(with_rules):
    assert with_rules(hold_seconds=1500.0).story("wwww") == ["-", "-", "-", ".>w"]


def test_critical_must_hold_for_as_many_looks_as_the_site_says(with_rules):
    assert with_rules(critical_looks=3).story("CCC") == ["-", "-", ".>C"]


def test_worse_is_told(world):
    assert world.story("wwC") == ["-", ".>w", "w>C"]


def test_better_but_not_well_is_told(world):
    assert world.story("Cw.") == [".>C", "C>w", "w>."]


def test_what_cannot_be_looked_at_is_told_when_it_lasts(world):
    assert world.story(".???????") == ["-", "-", "-", "-", "-", "-", "-", ".>?"]


def test_unknown_takes_nothing_back(world):
    assert world.story("C?.") == [".>C", "-", "C>."]


def test_unknown_between_two_looks_neither_counts_nor_resets(world):
    assert world.story("w?w") == ["-", "-", ".>w"]


def test_a_key_that_is_absent_keeps_its_level(world):
    world.see("C")
    assert world.ledger.record([]) == []
    assert world.ledger.levels()["hang/gpt"].level is Level.CRITICAL


def test_what_stays_critical_is_told_again_ever_more_seldom(world):
    told = world.story("C" * 50, minutes=60)
    assert [hour for hour, each in enumerate(told) if each == "C>C"] == [1, 5, 17, 41]


def test_a_repeat_says_since_when_nothing_can_be_seen(world):
    world.see("C")
    world.clock.forward(hours=2)
    [again] = world.ledger.record([finding(Level.UNKNOWN, summary="the node does not answer")])
    assert again.finding.level is Level.CRITICAL
    assert again.finding.evidence[-1] == "now unknown: the node does not answer"


def test_without_repeat_hours_nothing_is_repeated(with_rules):
    assert set(with_rules(repeat_hours=()).story("C" * 50, minutes=60)[1:]) == {"-"}


def test_flapping_is_told_ever_more_seldom(world):
    told = world.story("C." * 100)
    assert sum(each == ".>C" for each in told) == 2
    assert sum(each == "C>." for each in told) == 1


def test_what_flapped_is_over_when_it_stays_well(world):
    assert world.story("C.C..") == [".>C", "C>.", ".>C", "-", "C>."]


def test_what_comes_back_much_later_is_a_new_incident(world):
    world.story("C.")
    world.clock.forward(hours=3)
    world.see("C")
    assert world.ledger.levels()["hang/gpt"].flaps == 0


def test_ids_of_one_incident_share_their_beginning(world):
    ids = [each.id for mark in (Level.CRITICAL, Level.OK) for each in world.ledger.record([finding(mark)])]
    incident = ids[0].partition(".")[0]
    assert ids == [f"{incident}.1", f"{incident}.2"]


def test_of_two_findings_with_one_key_the_worst_counts(world):
    [told] = world.ledger.record([finding(Level.CRITICAL), finding(Level.OK)])
    assert told.finding.level is Level.CRITICAL


def test_a_silence_holds_back_and_tells_afterwards(world):
    world.ledger.silence("hang/*", world.clock.now() + timedelta(minutes=25), "maintenance")
    assert world.story("CCCC") == ["-", "-", "-", ".>C"]


def test_what_was_over_before_the_silence_ends_is_not_told(world):
    world.ledger.silence("hang/*", world.clock.now() + timedelta(minutes=25), "maintenance")
    assert world.story("CC...") == ["-"] * 5


def test_what_got_well_in_the_silence_is_told_to_those_who_know(world):
    world.see("C")
    world.ledger.silence("hang/gpt", world.clock.now() + timedelta(minutes=15), "on it")
    assert world.story("...") == ["-", "-", "C>."]


def test_what_was_told_before_the_silence_is_not_repeated_in_it(world):
    world.see("C")
    world.ledger.silence("hang/gpt", world.clock.now() + timedelta(hours=30), "on it")
    assert not any(world.see("C") for _ in range(29) if not world.clock.forward(hours=1))
    world.clock.forward(hours=2)
    assert len(world.see("C")) == 1


def test_a_silence_is_of_its_pattern_only(world):
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=1), "maintenance")
    assert world.see("C", key="fs_quota/scratch") == [".>C"]


def test_a_silence_can_be_ended(world):
    world.ledger.silence("hang/*", world.clock.now() + timedelta(hours=1), "maintenance")
    world.ledger.silence("hang/*", world.clock.now(), "")
    assert world.ledger.read().in_force(world.clock.now()) == []
    assert world.see("C") == [".>C"]


def test_what_is_acknowledged_is_not_repeated(world):
    world.see("C")
    world.ledger.ack("hang/gpt", "on it")
    assert set(world.story("C" * 30, minutes=60)) == {"-"}


def test_what_is_acknowledged_is_told_when_it_is_worse_and_when_it_is_over(world):
    world.story("ww")
    world.ledger.ack("hang/gpt", "on it")
    assert world.story("C.") == ["w>C", "C>."]
    assert world.ledger.levels()["hang/gpt"].acknowledged is None


def test_only_what_is_open_can_be_acknowledged(world):
    world.see(".")
    with pytest.raises(InputError, match=r"^hang/gpt: ok, nothing to acknowledge$"):
        world.ledger.ack("hang/gpt", "on it")
    with pytest.raises(InputError, match=r"^no alert 'hang/gtp'; did you mean 'hang/gpt'\?$"):
        world.ledger.ack("hang/gtp", "on it")


def test_silences_and_acknowledgements_are_journalled(world):
    world.see("C")
    world.ledger.silence("x", world.clock.now() + timedelta(hours=1), "maintenance")
    world.ledger.ack("hang/gpt", "on it")
    [journal] = world.site.alerts.glob("journal-*.jsonl")
    kinds = [json.loads(line)["kind"] for line in journal.read_text().splitlines()]
    assert kinds == ["silence", "ack"]


def test_a_transition_is_journalled_by_whoever_hands_it_on_once_at_least(world):
    world.see("C")
    [batch] = world.ledger.read().pending
    dispatch.send_alerts(world.alerting)
    [journal] = world.site.alerts.glob("journal-*.jsonl")
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [row["id"] for row in rows if row["kind"] == "transition"] == [batch.changes[0].transition.id]


def test_a_log_full_of_rubbish_can_be_told(world):
    rubbish = "\x00\x1b[31m\udcff\ud800<&>" + "x" * 5000
    world.see("C", summary="a\nb", evidence=(rubbish,) * 500)
    entry = world.ledger.levels()["hang/gpt"]
    assert entry.finding.summary == "a b"
    assert len(entry.finding.evidence) == 101
    assert entry.finding.evidence[-1] == "and 400 more lines"
    assert max(map(len, entry.finding.evidence)) == 1000


def test_a_ledger_that_is_none_is_set_aside_and_what_is_bad_is_told_again(world):
    world.see("C")
    (world.site.alerts / "ledger.json").write_text('{"entries": {"hang/gpt": ')
    assert world.see("C") == [".>C"]
    assert (world.site.alerts / "ledger.broken").exists()


def test_nobody_loses_when_it_cannot_be_written_and_there_is_no_spare(world):
    world.path.joinpath("site").write_text("a file, not a directory")
    world.path.joinpath("spare").write_text("another")
    with pytest.raises(RunDirError, match=r"Not a directory|File exists"):
        world.see("C")


def test_a_spare_one_that_another_takes_back_meanwhile_stops_nobody(world):
    spare = replace(world.ledger, site=world.spare, spare=None)
    with spare.open():
        pass  # it is there, and empty
    another = ExitStack()
    another.enter_context(lease(world.spare.alerts, world.clock))

    def taken_back(_seconds):
        spare.path.unlink()
        another.close()

    clock = Clock()
    clock.sleep = taken_back
    assert [said(each) for each in replace(world.ledger, clock=clock).record([finding(Level.CRITICAL)])] == [".>C"]


def test_what_nobody_looked_at_for_a_month_is_forgotten(world):
    world.see("C", key="hang/removed")
    world.clock.forward(days=31)
    world.see(".")
    assert list(world.ledger.levels()) == ["hang/gpt"]


def test_a_clock_that_was_a_day_ahead_delays_no_repeat(world):
    world.clock.forward(days=1)
    world.see("C")
    world.clock.forward(days=-1)
    assert world.story("CCC", minutes=60) == ["-", "C>C", "-"]


@pytest.mark.parametrize("skew", [90, -90, 86400])
def test_clocks_that_differ_lose_nothing_and_double_nothing(tmp_path, skew):
    here, there = World(tmp_path), World(tmp_path, clock=Clock())
    there.clock.forward(seconds=skew)
    told = []
    for look in range(12):
        for world in (here, there):
            told += world.see("C" if look < 6 else ".")
            world.clock.forward(minutes=5)
    assert told[0] == ".>C"
    assert told[-1] == "C>."
    assert set(told[1:-1]) <= {"C>C"}  # a clock that is a day ahead finds that the time for a repeat has come
    assert len(told) - 2 <= (1 if abs(skew) < 100 else 6)


def test_a_name_that_is_no_text_is_told_as_far_as_it_is(world):
    odd = replace(finding(Level.CRITICAL), key="train/\udcff", train="\udcff")
    [told] = world.ledger.record([odd])
    assert (told.finding.key, told.finding.train) == ("train/\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}")
    assert world.ledger.record([odd]) == []
