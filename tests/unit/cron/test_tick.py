"""One tick, with real programs and a fake clock, also on a full disk."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.cron.cron_dir import EntryResult, EntryRun
from opsctl.host.processes import ProcessId
from opsctl.state.lease import LEASE_STALE_S, LeaseBusy, lease
from tests.support.cron_context import NOON, CronSite
from tests.support.log_records import warnings
from tests.support.mounts import mounting

DAY = 86_400.0


def test_due_entry_is_run_and_recorded(cron_site: CronSite, caplog: pytest.LogCaptureFixture) -> None:
    cron_site.crontab("*/10 * * * * echo hello; echo trouble >&2; exit 3\n")
    ran = cron_site.tick()["echo hello; echo trouble >&2; exit 3"]
    assert (ran.result, ran.detail, ran.started) == (EntryResult.FAILED, "exit 3", NOON)
    assert cron_site.read_output(ran) == "hello\ntrouble\n"
    assert cron_site.ledger.entries == {"echo hello; echo trouble >&2; exit 3": ran}
    assert warnings(caplog) == ["echo hello; echo trouble >&2; exit 3: failed: exit 3"]


def test_entry_runs_at_the_first_tick_after_its_time(cron_site: CronSite) -> None:
    cron_site.crontab("5 * * * * echo >>$HERE/log\n")
    assert [len(cron_site.tick(after=600)) for _ in range(8)] == [1, 0, 0, 0, 0, 0, 1, 0]
    assert len(cron_site.log_lines) == 2


def test_entry_missed_for_days_runs_once(cron_site: CronSite) -> None:
    cron_site.crontab("*/10 * * * * echo often >>$HERE/log\n0 6 * * * echo daily >>$HERE/log\n")
    cron_site.tick()
    cron_site.tick(after=3 * DAY)
    assert cron_site.log_lines == ["often", "often", "daily"]
    assert cron_site.tick(after=1) == {}


def test_new_entry_does_not_run_for_the_past(cron_site: CronSite) -> None:
    cron_site.crontab("0 6 * * * echo daily >>$HERE/log\n")
    assert cron_site.tick() == {}
    assert cron_site.ledger.entries["echo daily >>$HERE/log"].since == NOON - timedelta(minutes=10)


def test_clock_behind_uses_the_slot_of_the_tick(cron_site: CronSite) -> None:
    cron_site.crontab("10 12 * * * true\n")
    cron_site.clock.time = NOON.replace(minute=8, second=30)
    assert cron_site.tick(slot=NOON.replace(minute=10, second=0)) != {}
    assert cron_site.tick(after=120) == {}, "the entry does not run again when the clock reaches the slot"


def test_broken_ledger_runs_nothing_twice(cron_site: CronSite) -> None:
    cron_site.crontab("0 12 * * * echo >>$HERE/log\n")
    cron_site.tick()
    for content in ("", "[]", "{", '{"entries": {"x": {"since": 3}}, "ticks": []}', "\x00\xff"):
        cron_site.place.ledger.write_text(content)
        cron_site.tick(after=600)
    assert len(cron_site.log_lines) == 1
    assert list(cron_site.ledger.entries) == ["echo >>$HERE/log"]


def is_gone(pid: Path) -> bool:
    """Return whether the process ends within 100 s; after SIGKILL a busy machine may take a while."""
    wait_until = time.monotonic() + 250
    while (process := ProcessId.of(int(pid.read_text()))) and time.monotonic() < wait_until:
        time.sleep(0.02)
    return process is None


def test_hanging_script_is_ended_with_its_children(cron_site: CronSite) -> None:
    cron_site.settings["timeout_seconds"] = 2
    cron_site.crontab("0 12 * * * sleep 100 & echo $! >$HERE/pid; sleep 100\n0 12 * * * true\n")
    first, second = cron_site.tick().values()
    assert (first.result, first.detail) == (EntryResult.TIMEOUT, "ended after 2 s")
    assert second.result is EntryResult.OK, "the next entry runs"
    assert is_gone(cron_site.path / "pid")


def test_background_process_ends_with_its_script(cron_site: CronSite) -> None:
    cron_site.crontab("0 12 * * * sleep 100 & echo $! >$HERE/pid\n")
    assert [entry_run.result for entry_run in cron_site.tick().values()] == [EntryResult.OK]
    assert is_gone(cron_site.path / "pid")


def test_gigabyte_of_output_is_cut_in_the_middle(cron_site: CronSite) -> None:
    cron_site.settings["timeout_seconds"] = 250
    cron_site.crontab("0 12 * * * echo first; head -c 1000000000 /dev/zero; echo; echo last; exit 1\n")
    (ran,) = cron_site.tick().values()
    text = cron_site.read_output(ran)
    assert (ran.result, ran.detail) == (EntryResult.FAILED, "exit 1")
    assert text.startswith("first\n")
    assert text.endswith("\nlast\n")
    assert len(text) < (1 << 20) + 100
    left_out = re.search(r"\[... (\d+) bytes left out ...\]", text)
    assert left_out
    assert int(left_out[1]) == 1_000_000_012 - (1 << 20)


def test_script_that_is_not_executable_is_refused(cron_site: CronSite) -> None:
    cron_site.drop_in("cron.hourly/mine", "#!/bin/sh\necho >>$HERE/log\n", mode=0o644)
    (ran,) = cron_site.tick().values()
    assert (ran.result, ran.detail, cron_site.log_lines) == (EntryResult.REFUSED, "not executable: chmod +x it", [])


def test_script_writable_by_others_is_refused(cron_site: CronSite) -> None:
    path = cron_site.drop_in("cron.hourly/mine", "#!/bin/sh\necho >>$HERE/log\n", mode=0o775)
    (ran,) = cron_site.tick().values()
    assert ran.result is EntryResult.REFUSED
    assert f"{path}: mode 0775 lets others write" in ran.detail
    path.chmod(0o755)
    path.parent.chmod(0o777)
    assert [entry_run.result for entry_run in cron_site.tick(after=3600).values()] == [EntryResult.REFUSED]
    path.parent.chmod(0o755)
    assert [entry_run.result for entry_run in cron_site.tick(after=3600).values()] == [EntryResult.OK]


def test_link_is_judged_by_its_target(cron_site: CronSite) -> None:
    target = cron_site.drop_in("elsewhere/script", "#!/bin/sh\necho >>$HERE/log\n")
    (cron_site.directory / "cron.hourly").mkdir()
    (cron_site.directory / "cron.hourly" / "link").symlink_to(target)
    cron_site.tick()
    target.parent.chmod(0o777)
    (ran,) = cron_site.tick(after=3600).values()
    assert (ran.result, len(cron_site.log_lines)) == (EntryResult.REFUSED, 1)


def test_script_name_of_any_bytes_runs(cron_site: CronSite) -> None:
    (cron_site.directory / "cron.hourly").mkdir()
    for name in (b"-rf", b"a;touch b", b"line\nfeed", b"\xff", b"$(touch c)", b"%s%n"):
        path = cron_site.directory / "cron.hourly" / os.fsdecode(name)
        path.write_text("#!/bin/sh\necho ran >>$HERE/log\n")
        path.chmod(0o755)
    assert {entry_run.result for entry_run in cron_site.tick().values()} == {EntryResult.OK}
    assert len(cron_site.log_lines) == 6
    assert cron_site.ledger.entries.keys() == {entry.id for entry in cron_site.cron.schedule().entries}


def test_script_that_cannot_start_fails_alone(cron_site: CronSite) -> None:
    cron_site.drop_in("cron.hourly/a", "#!/nonexistent/interpreter\n")
    cron_site.drop_in("cron.hourly/b", "not a program")
    cron_site.drop_in("cron.hourly/c", "#!/bin/sh\n")
    ran = cron_site.tick()
    assert [entry_run.detail for entry_run in ran.values()] == [
        "cannot be started: No such file or directory",
        "cannot be started: Exec format error",
        "",
    ]


def test_entry_environment_has_path_and_no_job_variables(cron_site: CronSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    cron_site.crontab('PATH=/usr/bin:/bin\nX=1\n0 12 * * * echo "$PATH|$X|$SLURM_JOB_ID|$SLURM_CONF" >>$HERE/log\n')
    cron_site.tick()
    path, x, job, conf = cron_site.log_lines[0].split("|")
    assert path.endswith(":/usr/bin:/bin")
    assert (x, job, conf) == ("1", "", "/etc/slurm.conf")
    assert cron_site.ledger.ticks[-1].by.endswith(", job 7")


def test_second_tick_leaves(cron_site: CronSite) -> None:
    cron_site.crontab("0 12 * * * echo >>$HERE/log\n")
    cron_site.place.create()
    with lease(cron_site.place.path, cron_site.clock), pytest.raises(LeaseBusy):
        cron_site.tick()
    assert cron_site.log_lines == []
    assert len(cron_site.tick()) == 1


def test_long_tick_renews_its_lease(cron_site: CronSite) -> None:
    entry = "until [ -e $HERE/go ]; do sleep 0.02; done"
    cron_site.settings["timeout_seconds"] = 250
    cron_site.crontab(f"0 12 * * * {entry}\n")
    ticking = threading.Thread(target=cron_site.tick)
    ticking.start()
    held = cron_site.place.path / ".lease"
    wait_until(
        lambda: cron_site.place.ledger.exists() and cron_site.ledger.entries[entry].result is EntryResult.RUNNING
    )
    for _ in range(4):
        cron_site.clock.time += timedelta(seconds=LEASE_STALE_S / 2)
        now = cron_site.clock.time.timestamp()
        wait_until(lambda now=now: f'"at": {now}' in held.read_text())  # type: ignore[misc]  # binds the current `now`
    with pytest.raises(LeaseBusy), lease(cron_site.place.path, cron_site.clock, wait=0):
        pass
    (cron_site.path / "go").touch()
    ticking.join()
    assert cron_site.ledger.entries[entry].result is EntryResult.OK
    with lease(cron_site.place.path, cron_site.clock, wait=0):
        pass


def wait_until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 250
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def run_killed_tick(cron_site: CronSite, *, after: float = 0) -> EntryRun:
    pid = os.fork()
    if pid == 0:
        cron_site.tick(after=after)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == 9
    (ran,) = cron_site.ledger.entries.values()
    return ran


def test_entry_that_kills_its_tick_runs_twice_at_most(cron_site: CronSite) -> None:
    cron_site.crontab("0 12 * * * echo >>$HERE/log; kill -9 $PPID; sleep 0.2\n")
    assert run_killed_tick(cron_site).result is EntryResult.RUNNING
    assert run_killed_tick(cron_site, after=600).again
    assert cron_site.tick(after=1200) == {}, "the lease is free and the entry is not due"
    assert len(cron_site.log_lines) == 2


def test_entry_of_a_killed_tick_runs_at_the_next_tick(cron_site: CronSite) -> None:
    cron_site.crontab(
        "0 12 * * * echo >>$HERE/log; [ -e $HERE/done ] || { touch $HERE/done; kill -9 $PPID; sleep 0.2; }\n"
    )
    run_killed_tick(cron_site)
    (ran,) = cron_site.tick(after=600).values()
    assert (ran.result, ran.again) == (EntryResult.OK, False)
    assert cron_site.tick(after=1200) == {}


def test_terminated_tick_ends_its_script(cron_site: CronSite) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(143)

    cron_site.crontab("0 12 * * * echo $$ >$HERE/pid; kill $PPID; sleep 100\n")
    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit):
            cron_site.tick()
    finally:
        signal.signal(signal.SIGTERM, before)
    pid, limit = int((cron_site.path / "pid").read_text()), time.monotonic() + 250
    while ProcessId.of(pid):  # SIGKILL was sent and takes a moment
        assert time.monotonic() < limit
        time.sleep(0.01)
    (ran,) = cron_site.ledger.entries.values()
    assert (ran.result, ran.detail) == (EntryResult.FAILED, "ended together with the tick")


def test_entries_beyond_the_time_limit_stay_due(cron_site: CronSite, caplog: pytest.LogCaptureFixture) -> None:
    cron_site.settings |= {"time_limit": "2"}
    cron_site.crontab("0 12 * * * echo one\n0 12 * * * echo two\n")
    real = cron_site.clock.monotonic
    calls = iter(range(1000))
    cron_site.clock.monotonic = lambda: real() + 20 * next(calls)  # type: ignore[method-assign]  # 20 s pass at every call
    assert list(cron_site.tick()) == ["echo one"]
    assert warnings(caplog)[-1] == "out of time; the rest is due at the next tick"
    del cron_site.clock.monotonic
    assert list(cron_site.tick(after=5)) == ["echo two"]


def test_tick_writes_its_time(cron_site: CronSite) -> None:
    assert cron_site.place.last_tick() is None
    cron_site.tick()
    assert cron_site.place.last_tick() == NOON.replace(microsecond=0)
    assert cron_site.place.site.last_tick.read_text() == f"{NOON.timestamp():.0f}\n"


def test_tick_of_a_clock_ahead_stops_no_entry(cron_site: CronSite) -> None:
    cron_site.crontab("*/10 * * * * echo >>$HERE/log\n")
    cron_site.tick(after=30 * DAY)
    cron_site.clock.time = NOON
    assert [len(cron_site.tick(after=600)) for _ in range(3)] == [0, 1, 1]


def test_clock_hours_ahead_runs_no_daily_entry_twice(cron_site: CronSite) -> None:
    """Every other tick runs on a node whose clock is 12 hours ahead."""
    cron_site.crontab("0 6 * * * echo daily >>$HERE/log\n*/10 * * * * echo often >>$HERE/log\n")
    for number in range(16):
        cron_site.clock.time = NOON + number * timedelta(hours=3) + timedelta(hours=12 * (number % 2))
        cron_site.tick()
    assert cron_site.log_lines.count("daily") == 2, "on 3 and 4 March by the clock that is ahead"
    assert cron_site.log_lines.count("often") >= 8, "an entry that runs more often than the clocks differ goes on"


def test_daily_entry_runs_again_after_a_clock_was_ahead(cron_site: CronSite) -> None:
    cron_site.crontab("0 6 * * * echo daily >>$HERE/log\n")
    cron_site.tick()
    cron_site.tick(after=DAY - 3600)
    cron_site.clock.time = NOON
    counts = []
    for _ in range(4):
        cron_site.tick(after=DAY)
        counts.append(len(cron_site.log_lines))
    assert counts == [1, 2, 3, 4]


def test_small_difference_of_clocks_runs_nothing_twice(cron_site: CronSite) -> None:
    cron_site.crontab("0 12 * * * echo >>$HERE/log\n")
    cron_site.tick(after=60)
    cron_site.clock.time = NOON - timedelta(seconds=30)
    assert [len(cron_site.tick(after=600)) for _ in range(2)] == [0, 0]


def test_tick_from_the_future_makes_cron_overdue(cron_site: CronSite) -> None:
    cron_site.tick(after=30 * DAY)
    cron_site.place.selected.write_text("{}")
    os.utime(cron_site.place.selected, (0, 0))
    assert cron_site.place.is_overdue(600, NOON)


def test_removed_entry_is_forgotten_after_a_month(cron_site: CronSite) -> None:
    cron_site.crontab("0 12 * * * echo a\n")
    cron_site.tick()
    cron_site.crontab("0 12 * * * echo b\n")
    cron_site.tick(after=29 * DAY)
    assert set(cron_site.ledger.entries) == {"echo a", "echo b"}
    cron_site.tick(after=2 * DAY)
    assert set(cron_site.ledger.entries) == {"echo b"}


pytestmark = pytest.mark.root

CRONTAB = "*/10 * * * * echo often >>$HERE/log; echo said\n0 12 * * * echo daily >>$HERE/log\n"


@pytest.fixture
def full(cron_site: CronSite) -> Iterator[CronSite]:
    """A site whose directory is on a full file system of 64 KiB."""
    root = cron_site.path / "trains"
    root.mkdir()
    with mounting(root, "size=64k,mode=755"):
        cron_site.crontab(CRONTAB)
        cron_site.clock.time -= timedelta(minutes=25)
        cron_site.tick()
        cron_site.clock.time = NOON
        with pytest.raises(OSError, match="No space left"), (root / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 512)
        (cron_site.path / "log").unlink()
        yield cron_site


def test_full_disk_runs_due_entries_once(full: CronSite, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(6):
        ran = full.tick(after=600 if full.log_lines else 0)
        assert ran
        assert {entry_run.result for entry_run in ran.values()} == {EntryResult.OK}
    assert full.log_lines.count("often") == 6
    assert full.log_lines.count("daily") == 1
    assert any("No space left on device" in text for text in warnings(caplog))
    (full.path / "trains" / "filler").unlink()
    full.tick(after=600)
    assert len(full.ledger.entries) == 2, "the ledger is written again"


def test_read_only_disk_runs_due_entries(full: CronSite, caplog: pytest.LogCaptureFixture) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(full.path / "trains")], check=True)
    ran = full.tick()
    assert len(ran) == 2
    assert {entry_run.result for entry_run in ran.values()} == {EntryResult.OK}
    assert any("Read-only file system" in text for text in warnings(caplog))
