"""The slurm driver of cron on real Slurms: many ticks, and the faults of a bad night."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.actions.owner_actions import keep_cron_alive
from opsctl.app import App, build
from opsctl.base.errors import Unreachable
from opsctl.base.model import Job, JobState
from opsctl.cli.output import print_on_stderr
from opsctl.cli.status import status
from opsctl.cron.cron_dir import (
    CronDir,
    EntryResult,
    EntryRun,
    RunHistory,
    SelectedDriver,
    TickRun,
    read_ledger,
    read_selected,
    write_ledger,
    write_selected,
)
from opsctl.cron.drivers.slurm_job import SlurmDriver
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.faults import FaultKind
from tests.support.slurms import run_slurm, save_controller_state
from tests.support.trains import until

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
HOUR_S = 3600


class Site:
    """A site with its own crontab, on one sandbox."""

    def __init__(self, path: Path, sandbox: Sandbox, every: int) -> None:
        self.file, self.sandbox, self.every = path / "site.toml", sandbox, every
        self.directory = path / "cron"
        (self.directory / "cron.hourly").mkdir(parents=True)
        self.file.write_text(
            f'root = "{path}/trains"\ntrust_parents = true\n[cron]\ndirectory = "{self.directory}"\n'
            f'tick_seconds = {every}\nmemory = "10"\ntime_limit = "5"\n'
        )

    @property
    def app(self) -> App:
        return build(self.file)

    @property
    def driver(self) -> SlurmDriver:
        return self.app.slurm_cron

    @property
    def place(self) -> CronDir:
        return self.driver.cron.place

    def make_overdue(self, *ids: str) -> None:
        """Make these entries overdue, so that the first tick runs them."""
        self.place.create()
        write_ledger(self.place, RunHistory(entries={id: EntryRun(since=LONG_AGO) for id in ids}))

    def opsctl(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-P", "-m", "opsctl", "--site", str(self.file), *words]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @property
    def waiting(self) -> list[Job]:
        return [job for job in self.driver.jobs() if job.state.is_waiting]

    @property
    def running(self) -> list[Job]:
        return [job for job in self.driver.jobs() if job.state is JobState.RUNNING]

    def cancel_all(self) -> bool:
        """Cancel every tick and return whether none is left. A running tick may just have submitted the next."""
        for job in self.driver.jobs():
            self.driver.slurm.cancel(job.id)
        return not self.driver.jobs()

    def stop_starting_jobs(self) -> None:
        """Close the partition, so that no job starts."""
        run_slurm(self.sandbox, "scontrol", "update", "partition=main", "state=down")

    @property
    def ticks(self) -> tuple[TickRun, ...]:
        return read_ledger(self.place).ticks

    def wait_for_ticks(self, count: int) -> None:
        until(lambda: len(self.ticks) >= count, seconds=250)

    def read_run(self, id: str) -> EntryRun:
        return read_ledger(self.place).entries[id]


@pytest.fixture
def site_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make_site(sandbox: Sandbox, *, every: int) -> Site:
        monkeypatch.setenv("SLURM_CONF", str(sandbox.conf))
        sites.append(Site(tmp_path, sandbox, every))
        return sites[-1]

    yield make_site
    for site in sites:
        if site.sandbox.status().is_up:
            for job in site.driver.jobs():
                site.driver.slurm.cancel(job.id)


def test_simultaneous_starts_make_one_chain(fresh_slurm: Callable[..., Sandbox], site_on: Callable[..., Site]) -> None:
    site = site_on(fresh_slurm(nodes=1), every=2)
    batch = site.directory / "cron.hourly" / "a report.slurm"
    batch.write_text("#!/bin/bash\n#SBATCH --mem=10\necho reported\n")
    (site.directory / "crontab").write_text("0 0 * * * echo $$ >$HOME/hangs; exec sleep 250\n")
    site.make_overdue("echo $$ >$HOME/hangs; exec sleep 250", "cron.hourly/a report.slurm")
    starts = [site.opsctl("cron", "start") for _ in range(2)]
    lines = sorted(start.communicate(timeout=250)[0] for start in starts)
    assert [start.returncode for start in starts] == [0, 0]
    assert [line.partition(" every")[0] for line in lines] == ["already ticks", "ticks"]
    jobs = [int(line.rpartition("next as job ")[2].split()[0]) for line in lines]
    third = json.loads(site.opsctl("cron", "start", "--json").communicate(timeout=250)[0])
    assert (third["driver"], third["every"], third["was_started"]) == ("slurm", 2, True)
    assert int(third["job"]) >= max(jobs), "of one chain, in which ticks have begun meanwhile"

    first = until(lambda: site.running and (Path.home() / "hangs").exists() and site.waiting and site.running)[0]
    until(lambda: site.waiting[0].reason == "Dependency")  # the running tick is late, so the next one waits
    assert [job.id for job in site.running] == [first.id]
    site.driver.slurm.cancel(first.id)  # during an entry; the successor is queued already
    site.wait_for_ticks(1)
    hung = site.read_run("echo $$ >$HOME/hangs; exec sleep 250")
    assert hung.result in (EntryResult.FAILED, EntryResult.RUNNING)
    report = site.read_run("cron.hourly/a report.slurm")
    assert report.result is EntryResult.OK
    number = report.detail.removeprefix("job ")
    until((site.place.output / f"slurm-{number}.out").exists)

    site.wait_for_ticks(3)
    ticks = site.ticks
    slots = [tick.slot for tick in ticks if tick.slot]
    assert len(slots) == len(set(slots)) == len(ticks)
    assert all(slot.timestamp() % site.every == 0 for slot in slots)
    assert len({tick.by for tick in ticks}) == len(slots)

    stop = json.loads(site.opsctl("cron", "stop", "--json").communicate(timeout=250)[0])
    assert stop["done"].startswith("stopped")
    assert stop["driver"] == "slurm"
    until(lambda: not site.driver.jobs())
    assert read_selected(site.place) is None


def test_successor_forgotten_by_slurmctld_is_resubmitted(
    fresh_slurm: Callable[..., Sandbox], site_on: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = fresh_slurm(nodes=1)
    site = site_on(sandbox, every=3600)
    monkeypatch.setattr("opsctl.cron.drivers.slurm_job.PERSISTED_AFTER_S", 3.0)
    site.place.create()
    write_selected(site.place, SelectedDriver(driver="slurm", since=datetime.now(UTC), by="me"))

    restore = save_controller_state(sandbox)
    now = datetime.now(UTC)
    first = site.driver.ensure(after=now, own="999")
    submitted = site.waiting[0].submitted
    crash = threading.Timer(0.5, restore)
    crash.start()
    assert site.driver.follow(now, "999", seconds=150)
    crash.join()
    (successor,) = site.waiting
    assert submitted is not None
    assert successor.submitted is not None
    assert successor.submitted > submitted, f"job {first} was forgotten, and {successor.id} is another"


def test_dead_chain_is_revived_once_by_the_next_command(
    fresh_slurm: Callable[..., Sandbox], site_on: Callable[..., Site], capsys: pytest.CaptureFixture[str]
) -> None:
    site = site_on(fresh_slurm(nodes=1), every=HOUR_S)
    site.place.create()
    site.driver.start()
    assert site.driver.revive() == ""
    until(site.cancel_all)
    site.stop_starting_jobs()
    ago = datetime.now(UTC) - timedelta(hours=4)
    site.place.touch(ago)
    os.utime(site.place.selected, (ago.timestamp(), ago.timestamp()))
    status.main([], obj=site.app, standalone_mode=False)
    assert "submitted the next one as job" in capsys.readouterr().err
    keep_cron_alive(site.app, show=print_on_stderr)
    assert capsys.readouterr().err == ""
    assert len(site.driver.jobs()) == 1
    site.driver.stop()


def test_duplicate_and_distant_successors_are_cancelled(
    fresh_slurm: Callable[..., Sandbox], site_on: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "somebody-else")
    monkeypatch.setenv("LOGNAME", "somebody-else")
    site = site_on(fresh_slurm(nodes=1), every=HOUR_S)
    site.place.create()
    driver = site.driver
    driver.start()
    until(site.cancel_all)
    now = datetime.now(UTC)
    year, first, second = (
        driver._submit(now + ahead) for ahead in (timedelta(days=365), timedelta(hours=2), timedelta(hours=2))
    )
    until(lambda: len(site.waiting) == 3)
    assert driver.ensure(after=now, own="999") == first
    assert [job.id for job in site.waiting] == [first]
    assert {year, second} & {job.id for job in site.waiting} == set()
    subprocess.run(["scontrol", "update", f"JobId={first}", "Comment=the site's own"], check=True)
    assert driver.ensure(after=now, own="999") == first
    driver.stop()
    assert driver.ensure(after=now, own="999") is None
    assert site.waiting == []


def test_broken_python_does_not_end_the_chain(
    fresh_slurm: Callable[..., Sandbox], site_on: Callable[..., Site]
) -> None:
    site = site_on(fresh_slurm(nodes=1), every=2)
    site.place.create()
    broken = replace(site.driver, python="/nowhere/it's python")
    broken.start()
    until(lambda: max([int(job.id) for job in site.driver.jobs()], default=0) >= 4)
    (log,) = site.place.output.iterdir()
    assert "opsctl: cron does not start with /nowhere/it's python; only submitting the next tick" in log.read_text()
    assert site.ticks == ()
    site.driver.stop()
    until(lambda: not site.driver.jobs())


def fill_queue(submit: list[str]) -> list[str]:
    """Submit held jobs until sbatch waits for room; return their ids. Versions count MaxJobCount differently."""
    held: list[str] = []
    while len(held) < 4:
        try:
            done = subprocess.run(submit, capture_output=True, text=True, check=True, timeout=10)
        except subprocess.TimeoutExpired:
            return held
        held.append(done.stdout.strip())
    raise AssertionError(f"the queue takes more than {len(held)} jobs")


@pytest.mark.long
def test_full_queue_does_not_lose_the_chain(
    fresh_slurm: Callable[..., Sandbox], site_on: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = fresh_slurm(nodes=1)
    site = site_on(sandbox, every=HOUR_S)
    with sandbox.conf.open("a") as conf:
        conf.write("MaxJobCount=2\nMinJobAge=2\n")
    sandbox.fault("controller", FaultKind.RESTART)
    site.stop_starting_jobs()
    fillers = ["sbatch", "--parsable", "--hold", "--mem=10", "--output=/dev/null", "--wrap=true"]
    held = fill_queue(fillers)
    site.place.create()
    monkeypatch.setattr("opsctl.slurm.commands.TIMEOUT_S", 2.0)
    monkeypatch.setattr("opsctl.cron.drivers.slurm_job.PERSISTED_AFTER_S", 1.0)
    with pytest.raises(Unreachable):
        site.driver.start()
    assert read_selected(site.place) is not None, "the next opsctl command revives the chain"
    free = threading.Timer(1, lambda: subprocess.run(["scancel", *held], check=True))
    free.start()
    assert site.driver.follow(datetime.now(UTC), "", seconds=150)
    assert len(site.driver.jobs()) == 1
    site.driver.stop()


def test_shipped_entries_run(slurm: Sandbox, site_on: Callable[..., Site]) -> None:
    site = site_on(slurm, every=600)
    site.file.write_text(f'root = "{site.directory.parent}/trains"\ntrust_parents = true\n')
    ids = [entry.id for entry in site.driver.cron.schedule().entries]
    site.make_overdue(*ids)
    text = site.opsctl("cron", "tick").communicate(timeout=250)[0]
    assert {id: site.read_run(id).result for id in ids} == dict.fromkeys(ids, EntryResult.OK), text


def test_tick_without_slurm_runs_due_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\nAuthType=auth/none\nTCPTimeout=1\n"
        "MessageTimeout=1\nSlurmctldTimeout=1\n"
    )
    monkeypatch.setenv("SLURM_CONF", str(conf))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    site = Site(tmp_path, None, 1)  # type: ignore[arg-type]  # this test has no sandbox
    (site.directory / "crontab").write_text("* * * * * echo >>$HOME/log\n")
    site.make_overdue("echo >>$HOME/log")
    site.file.write_text(site.file.read_text().replace('"5"', '"1"'))
    tick = site.opsctl("cron", "tick", "--slot", str(int(time.time())))
    assert tick.wait(timeout=250) == 0
    assert site.read_run("echo >>$HOME/log").result is EntryResult.OK
    assert os.path.getsize(Path.home() / "log") == 1
