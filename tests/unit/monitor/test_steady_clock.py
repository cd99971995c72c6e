"""The time by which watch cycles judge limits, under clocks that jump."""

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from opsctl.monitor.steady_clock import ClockReading, SteadyClock, TimeLine, start_line
from opsctl.watchdogs.context import WatchdogMemory, recall, to_fields
from tests.support.watched_trains import ForwardClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR, DAY = 3600.0, 86_400.0


class Hosts:
    """Two hosts whose cycles follow one time line; `minutes` of true time have passed since noon."""

    def __init__(self):
        self.true_s, self.line, self.suspended_s = 0.0, None, {}

    def cycle(self, *, off_s=0.0, boot="a", minutes=10.0):
        """Run a cycle after `minutes` and return by how many seconds its time is wrong."""
        self.true_s += minutes * 60
        wall_s = NOON.timestamp() + self.true_s + off_s
        monotonic_s = self.true_s + 1000 - self.suspended_s.get(boot, 0.0)
        reading = ClockReading(wall_s=wall_s, monotonic_s=monotonic_s, boot=boot)
        self.line = self.line.advance(reading) if self.line else start_line(reading)
        return self.line.at_s - NOON.timestamp() - self.true_s

    def suspend(self, boot, seconds):
        """Let the monotonic clock of a host stand still for some of the following time."""
        self.suspended_s[boot] = seconds


@pytest.fixture
def hosts():
    hosts = Hosts()
    for _ in range(3):
        hosts.cycle()
    return hosts


def test_right_clock_is_followed(hosts):
    assert [hosts.cycle(minutes=minutes) for minutes in (10, 1, 600, 0.1)] == [0, 0, 0, 0]


@pytest.mark.parametrize("off_s", [-420.0, 1700.0])
def test_step_in_one_cycle_moves_five_minutes_at_most(hosts, off_s):
    assert abs(hosts.cycle(off_s=off_s)) <= 300
    assert hosts.cycle() == 0 or abs(hosts.cycle()) <= 120


@pytest.mark.parametrize("off_s", [HOUR, 12 * HOUR, -12 * HOUR, 20 * DAY])
def test_jump_for_an_hour_at_most_moves_nothing(hosts, off_s):
    for _ in range(8):
        assert {hosts.cycle(off_s=off_s) for _ in range(6)} == {0}
        assert hosts.cycle() == 0


@pytest.mark.parametrize("off_s", [420.0, -420.0, HOUR, -HOUR])
def test_lasting_step_is_approached_without_going_back(hosts, off_s):
    times = [hosts.line.at_s]
    for _ in range(26):
        wrong_s = hosts.cycle(off_s=off_s)
        times.append(hosts.line.at_s)
    assert wrong_s == off_s
    steps = [after - before for before, after in pairwise(times)]
    assert min(steps) >= 300
    assert max(steps) <= 900


def test_clock_off_by_years_counts_after_an_hour(hosts):
    wrong_s = [hosts.cycle(off_s=-9000 * DAY) for _ in range(8)]
    assert [value == -9000 * DAY for value in wrong_s] == [False] * 6 + [True] * 2


@pytest.mark.parametrize("off_s", [6 * HOUR, -6 * HOUR])
def test_other_host_with_a_wrong_clock_does_not_count(hosts, off_s):
    for _ in range(5):
        assert hosts.cycle(off_s=off_s, boot="b") == -600
        assert hosts.cycle() == 0


def test_other_host_with_a_right_clock_counts_at_once(hosts):
    assert [hosts.cycle(boot="b"), hosts.cycle(), hosts.cycle(boot="c", minutes=25)] == [0, 0, 0]


def test_other_host_less_than_an_hour_off_does_not_count(hosts):
    assert [hosts.cycle(off_s=0.8 * HOUR, boot="b"), hosts.cycle()] == [-600, 0]


def test_other_host_that_was_believed_is_forgotten(hosts):
    assert hosts.cycle(off_s=900, boot="b") == 900
    assert hosts.cycle() == 0
    assert [hosts.cycle(off_s=6 * HOUR, boot="b"), hosts.cycle()] == [-600, 0]


def test_suspended_host_does_not_stop_the_time(hosts):
    hosts.cycle(boot="b")
    hosts.suspend("a", 5 * HOUR)
    for _ in range(4):
        hosts.cycle(boot="b", minutes=75)
    assert [hosts.cycle(), hosts.cycle(boot="b"), hosts.cycle()] == [0, 0, 0]


def test_new_host_after_a_long_pause_counts_in_its_third_cycle(hosts):
    wrong_s = [hosts.cycle(boot="b", minutes=480), hosts.cycle(boot="b"), hosts.cycle(boot="b")]
    assert [value == 0 for value in wrong_s] == [False, False, True]


def test_daily_cycles_of_other_hosts_count_at_once(hosts):
    hosts.cycle(minutes=1440)
    assert [hosts.cycle(boot=boot, minutes=1440) for boot in "bcd"] == [0, 0, 0]


def test_time_line_survives_storage(hosts):
    hosts.cycle(off_s=2 * DAY)
    hosts.cycle(off_s=2 * DAY, boot="b")
    assert recall(TimeLine, to_fields(hosts.line)) == hosts.line


@pytest.mark.parametrize(
    "change", [{"at_s": "x"}, {"at_s": 1e300}, {"starts_s": []}, {"gap_s": None}, {"doubted_cycles": "x"}]
)
def test_broken_time_line_counts_as_none(hosts, change):
    assert recall(TimeLine, {**asdict(hosts.line), **change}) is None
    assert recall(TimeLine, {}) is None


def test_clock_of_a_new_process_is_moved_to_the_line(tmp_path):
    memory, real = WatchdogMemory(tmp_path), ForwardClock()
    SteadyClock(real).settle(memory)
    real.ahead, real.skew = timedelta(minutes=10), timedelta(hours=6)
    steady = SteadyClock(real)
    assert steady.now() - real.real.now() > timedelta(hours=6)
    steady.settle(memory)
    assert timedelta(minutes=9) < steady.now() - real.real.now() < timedelta(minutes=11)
    assert memory.find(TimeLine, "clock", "site")


@pytest.mark.parametrize("minutes", [60, 1440])
def test_first_rare_cycles_of_new_hosts_count(minutes):
    hosts = Hosts()
    wrong_s = [hosts.cycle(boot=boot, minutes=minutes) for boot in "abcdef"]
    assert [value == 0 for value in wrong_s] == [True, False, False, True, True, True]


def test_clock_that_is_set_after_the_boot_does_not_count_before(hosts):
    for _ in range(4):
        assert hosts.cycle(off_s=5 * HOUR, boot="rebooted", minutes=1) < 0
    assert hosts.cycle(boot="rebooted", minutes=1) == 0


def test_host_that_was_outvoted_backwards_is_forgotten():
    hosts = Hosts()
    hosts.cycle(off_s=6 * HOUR)
    assert [hosts.cycle(boot="b") for _ in range(3)][-1] == 0
    assert hosts.cycle(off_s=6 * HOUR) == -600
    assert hosts.cycle(boot="b") == 0


def test_restored_machine_does_not_take_the_time_back(hosts):
    hosts.suspend("a", 3 * DAY)
    assert [hosts.cycle(off_s=-3 * DAY), hosts.cycle()] == [-600, 0]


@pytest.mark.parametrize(
    "change", [{"at_s": -1e11 + 1}, {"at_s": 99e9, "doubted_cycles": 1}, {"doubted_cycles": 1e999}]
)
def test_damaged_time_line_does_not_stop_a_cycle(tmp_path, hosts, change):
    memory, real = WatchdogMemory(tmp_path), ForwardClock()
    memory.remember("clock", "site", hosts.line)
    path = tmp_path / "clock" / "site.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    steady = SteadyClock(real)
    steady.settle(memory)
    assert memory.find(TimeLine, "clock", "site")


def test_damaged_begin_of_a_wrong_clock_delays_by_an_hour(hosts):
    hosts.line = replace(hosts.line, off_since_s=9e9)
    assert [hosts.cycle(off_s=-9 * DAY) for _ in range(8)][-1] == -9 * DAY


def test_clock_that_jumps_during_a_cycle_does_not_count(tmp_path):
    real = ForwardClock()
    steady = SteadyClock(real)
    steady.settle(WatchdogMemory(tmp_path))
    real.skew = timedelta(hours=6)
    assert abs(steady.now() - real.real.now()) < timedelta(seconds=10)


def test_suspended_machine_without_other_hosts_follows_its_clock(tmp_path):
    memory, real = WatchdogMemory(tmp_path), ForwardClock()
    SteadyClock(real, suspended_s=lambda: 0.0).settle(memory)
    real.skew = timedelta(hours=8)  # the monotonic clock stood still
    steady = SteadyClock(real, suspended_s=lambda: 8 * HOUR)
    steady.settle(memory)
    assert abs(steady.now() - real.now()) < timedelta(seconds=10)
