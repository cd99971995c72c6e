"""One tick: real programs, and a clock that is set by hand."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.cron.run_history import EntryResult, EntryRun
from opsctl.host.processes import ProcessId
from opsctl.state.lease import LEASE_STALE_S, LeaseBusy, lease
from tests.support.cron_context import NOON, CronWorld
from tests.support.log_records import warnings

DAY = 86_400.0


def test_what_is_due_is_run_and_written_down(world: CronWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.crontab("*/10 * * * * echo hello; echo trouble >&2; exit 3\n")
    ran = world.tick()["echo hello; echo trouble >&2; exit 3"]
    assert (ran.result, ran.detail, ran.started) == (EntryResult.FAILED, "exit 3", NOON)
    assert world.read_output(ran) == "hello\ntrouble\n"
    assert world.ledger.entries == {"echo hello; echo trouble >&2; exit 3": ran}
    assert warnings(caplog) == ["echo hello; echo trouble >&2; exit 3: failed: exit 3"]


def test_an_entry_runs_at_the_first_tick_at_or_after_its_time(world: CronWorld) -> None:
    world.crontab("5 * * * * echo >>$HERE/log\n")
    assert [len(world.tick(after=600)) for _ in range(8)] == [1, 0, 0, 0, 0, 0, 1, 0]
    assert len(world.log_lines) == 2


def test_what_was_missed_for_days_is_caught_up_with_once(world: CronWorld) -> None:
    world.crontab("*/10 * * * * echo often >>$HERE/log\n0 6 * * * echo daily >>$HERE/log\n")
    world.tick()
    world.tick(after=3 * DAY)
    assert world.log_lines == ["often", "often", "daily"]
    assert world.tick(after=1) == {}


def test_a_new_entry_does_not_catch_up_with_what_was_before_it(world: CronWorld) -> None:
    world.crontab("0 6 * * * echo daily >>$HERE/log\n")
    assert world.tick() == {}
    assert world.ledger.entries["echo daily >>$HERE/log"].since == NOON - timedelta(minutes=10)


def test_a_node_whose_clock_is_behind_does_what_was_due_when_its_tick_was_meant(world: CronWorld) -> None:
    world.crontab("10 12 * * * true\n")
    world.clock.time = NOON.replace(minute=8, second=30)
    assert world.tick(slot=NOON.replace(minute=10, second=0)) != {}
    assert world.tick(after=120) == {}, "and not once more when its clock has come so far"


def test_a_ledger_that_is_rubbish_runs_nothing_twice(world: CronWorld) -> None:
    world.crontab("0 12 * * * echo >>$HERE/log\n")
    world.tick()
    for rubbish in ("", "[]", "{", '{"entries": {"x": {"since": 3}}, "ticks": []}', "\x00\xff"):
        world.place.ledger.write_text(rubbish)
        world.tick(after=600)
    assert len(world.log_lines) == 1
    assert list(world.ledger.entries) == ["echo >>$HERE/log"]


def is_gone(pid: Path) -> bool:
    """Whether that process ends: one that was killed may take a while on a machine that is busy."""
    until = time.monotonic() + 100
    while (process := ProcessId.of(int(pid.read_text()))) and time.monotonic() < until:
        time.sleep(0.02)
    return process is None


def test_a_script_that_hangs_is_ended_with_what_it_started(world: CronWorld) -> None:
    world.settings["timeout_seconds"] = 2
    world.crontab("0 12 * * * sleep 100 & echo $! >$HERE/pid; sleep 100\n0 12 * * * true\n")
    first, second = world.tick().values()
    assert (first.result, first.detail) == (EntryResult.TIMEOUT, "ended after 2 s")
    assert second.result is EntryResult.OK, "the next one is run all the same"
    assert is_gone(world.path / "pid")


def test_what_a_script_leaves_in_the_background_ends_with_it(world: CronWorld) -> None:
    world.crontab("0 12 * * * sleep 100 & echo $! >$HERE/pid\n")
    assert [entry_run.result for entry_run in world.tick().values()] == [EntryResult.OK]
    assert is_gone(world.path / "pid")


def test_of_a_gigabyte_the_beginning_and_the_end_are_kept(world: CronWorld) -> None:
    world.settings["timeout_seconds"] = 250
    world.crontab("0 12 * * * echo first; head -c 1000000000 /dev/zero; echo; echo last; exit 1\n")
    (ran,) = world.tick().values()
    text = world.read_output(ran)
    assert (ran.result, ran.detail) == (EntryResult.FAILED, "exit 1")
    assert text.startswith("first\n")
    assert text.endswith("\nlast\n")
    assert len(text) < (1 << 20) + 100
    left_out = re.search(r"\[... (\d+) bytes left out ...\]", text)
    assert left_out
    assert int(left_out[1]) == 1_000_000_012 - (1 << 20)


def test_a_script_without_an_x_is_told_and_not_run(world: CronWorld) -> None:
    world.drop_in("cron.hourly/mine", "#!/bin/sh\necho >>$HERE/log\n", mode=0o644)
    (ran,) = world.tick().values()
    assert (ran.result, ran.detail, world.log_lines) == (EntryResult.REFUSED, "not executable: chmod +x it", [])


def test_a_script_that_others_could_have_written_is_not_run(world: CronWorld) -> None:
    path = world.drop_in("cron.hourly/mine", "#!/bin/sh\necho >>$HERE/log\n", mode=0o775)
    (ran,) = world.tick().values()
    assert ran.result is EntryResult.REFUSED
    assert f"{path}: mode 0775 lets others write" in ran.detail
    path.chmod(0o755)
    path.parent.chmod(0o777)
    assert [entry_run.result for entry_run in world.tick(after=3600).values()] == [EntryResult.REFUSED]
    path.parent.chmod(0o755)
    assert [entry_run.result for entry_run in world.tick(after=3600).values()] == [EntryResult.OK]


def test_a_link_is_as_good_as_what_it_leads_to(world: CronWorld) -> None:
    target = world.drop_in("elsewhere/script", "#!/bin/sh\necho >>$HERE/log\n")
    (world.directory / "cron.hourly").mkdir()
    (world.directory / "cron.hourly" / "link").symlink_to(target)
    world.tick()
    target.parent.chmod(0o777)
    (ran,) = world.tick(after=3600).values()
    assert (ran.result, len(world.log_lines)) == (EntryResult.REFUSED, 1)


def test_names_of_any_bytes_are_run_as_they_are(world: CronWorld) -> None:
    (world.directory / "cron.hourly").mkdir()
    for name in (b"-rf", b"a;touch b", b"line\nfeed", b"\xff", b"$(touch c)", b"%s%n"):
        path = world.directory / "cron.hourly" / os.fsdecode(name)
        path.write_text("#!/bin/sh\necho ran >>$HERE/log\n")
        path.chmod(0o755)
    assert {entry_run.result for entry_run in world.tick().values()} == {EntryResult.OK}
    assert len(world.log_lines) == 6
    assert world.ledger.entries.keys() == {entry.id for entry in world.cron.schedule().entries}


def test_a_script_that_cannot_be_started_is_a_failure_of_its_own(world: CronWorld) -> None:
    world.drop_in("cron.hourly/a", "#!/nonexistent/interpreter\n")
    world.drop_in("cron.hourly/b", "not a program")
    world.drop_in("cron.hourly/c", "#!/bin/sh\n")
    ran = world.tick()
    assert [entry_run.detail for entry_run in ran.values()] == [
        "cannot be started: No such file or directory",
        "cannot be started: Exec format error",
        "",
    ]


def test_entries_find_this_opsctl_first_and_nothing_of_the_job_they_may_be_in(
    world: CronWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    world.crontab('PATH=/usr/bin:/bin\nX=1\n0 12 * * * echo "$PATH|$X|$SLURM_JOB_ID|$SLURM_CONF" >>$HERE/log\n')
    world.tick()
    path, x, job, conf = world.log_lines[0].split("|")
    assert path.endswith(":/usr/bin:/bin")
    assert (x, job, conf) == ("1", "", "/etc/slurm.conf")
    assert world.ledger.ticks[-1].by.endswith(", job 7")


def test_a_tick_leaves_while_another_is_at_work(world: CronWorld) -> None:
    world.crontab("0 12 * * * echo >>$HERE/log\n")
    world.place.create()
    with lease(world.place.path, world.clock), pytest.raises(LeaseBusy):
        world.tick()
    assert world.log_lines == []
    assert len(world.tick()) == 1


def test_a_tick_that_takes_longer_than_a_lease_lasts_keeps_it(world: CronWorld) -> None:
    entry = "until [ -e $HERE/go ]; do sleep 0.02; done"
    world.settings["timeout_seconds"] = 250
    world.crontab(f"0 12 * * * {entry}\n")
    at_work = threading.Thread(target=world.tick)
    at_work.start()
    held = world.place.path / ".lease"
    until(lambda: world.place.ledger.exists() and world.ledger.entries[entry].result is EntryResult.RUNNING)
    for _ in range(4):
        world.clock.time += timedelta(seconds=LEASE_STALE_S / 2)
        now = world.clock.time.timestamp()
        until(lambda now=now: f'"at": {now}' in held.read_text())  # type: ignore[misc]  # what it is now
    with pytest.raises(LeaseBusy), lease(world.place.path, world.clock, wait=0):
        pass
    (world.path / "go").touch()
    at_work.join()
    assert world.ledger.entries[entry].result is EntryResult.OK
    with lease(world.place.path, world.clock, wait=0):
        pass


def until(holds: Callable[[], object]) -> None:
    limit = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.01)


def killed_tick(world: CronWorld, *, after: float = 0) -> EntryRun:
    pid = os.fork()
    if pid == 0:
        world.tick(after=after)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == 9
    (ran,) = world.ledger.entries.values()
    return ran


def test_a_tick_that_kills_itself_runs_its_entry_once_more_and_not_for_ever(world: CronWorld) -> None:
    world.crontab("0 12 * * * echo >>$HERE/log; kill -9 $PPID; sleep 0.2\n")
    assert killed_tick(world).result is EntryResult.RUNNING
    assert killed_tick(world, after=600).again
    assert world.tick(after=1200) == {}, "the lease is free, and it is not due"
    assert len(world.log_lines) == 2


def test_an_entry_whose_tick_was_killed_is_run_by_the_next_tick(world: CronWorld) -> None:
    world.crontab("0 12 * * * echo >>$HERE/log; [ -e $HERE/done ] || { touch $HERE/done; kill -9 $PPID; sleep 0.2; }\n")
    killed_tick(world)
    (ran,) = world.tick(after=600).values()
    assert (ran.result, ran.again) == (EntryResult.OK, False)
    assert world.tick(after=1200) == {}


def test_a_tick_that_is_told_to_leave_takes_its_script_with_it(world: CronWorld) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(143)

    world.crontab("0 12 * * * echo $$ >$HERE/pid; kill $PPID; sleep 100\n")
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit):
            world.tick()
    finally:
        signal.signal(signal.SIGTERM, before)
    pid, limit = int((world.path / "pid").read_text()), time.monotonic() + 100
    while ProcessId.of(pid):  # SIGKILL was sent; the kernel takes its moment
        assert time.monotonic() < limit
        time.sleep(0.01)
    (ran,) = world.ledger.entries.values()
    assert (ran.result, ran.detail) == (EntryResult.FAILED, "ended together with the tick")


def test_out_of_time_the_rest_stays_due(world: CronWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.settings |= {"time_limit": "2"}
    world.crontab("0 12 * * * echo one\n0 12 * * * echo two\n")
    real = world.clock.monotonic
    calls = iter(range(1000))
    world.clock.monotonic = lambda: real() + 20 * next(calls)  # type: ignore[method-assign]  # time flies
    assert list(world.tick()) == ["echo one"]
    assert warnings(caplog)[-1] == "out of time; the rest is due at the next tick"
    del world.clock.monotonic
    assert list(world.tick(after=5)) == ["echo two"]


def test_every_tick_gives_a_sign_of_attempt(world: CronWorld) -> None:
    assert world.place.last_tick() is None
    world.tick()
    assert world.place.last_tick() == NOON.replace(microsecond=0)
    assert world.place.site.last_tick.read_text() == f"{NOON.timestamp():.0f}\n"
