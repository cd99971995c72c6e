"""What a watch cycle asks Slurm, and what it makes of each kind of waiting."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import click
import pytest

from opsctl.errors import InputError
from opsctl.host.system import SystemRunner
from opsctl.model import JobState, Level
from opsctl.monitor.watch_cycle import CycleReport, Watch
from opsctl.sandbox.cluster import Sandbox
from opsctl.settings.loader import load_site
from opsctl.state.journal import EventKind
from opsctl.watchdogs.node_health import worst_severity
from tests.support.slurms import slurm_says
from tests.support.trains import Trains, as_user, trains_on, until
from tests.support.watched_trains import CountedApp, CountingRunner, ForwardClock, cycle, found, told

SLEEP = ("sleep", "600")


@pytest.fixture
def trains(slurm: Sandbox) -> Iterator[Trains]:
    with trains_on(slurm) as trains:
        yield trains


@pytest.fixture
def clock() -> ForwardClock:
    return ForwardClock()


@pytest.fixture
def app(trains: Trains, clock: ForwardClock, slurm: Sandbox) -> CountedApp:
    return app_of(trains, clock, slurm)


def app_of(trains: Trains, clock: ForwardClock, slurm: Sandbox, watch: str = "", alerts: str = "") -> CountedApp:
    with trains.site.open("a") as file:
        file.write(f"[watch]\n{watch}\n[alerts]\nwarning_looks = 1\nunknown_minutes = 0\n{alerts}\n")
    app = CountedApp(site=load_site(trains.site), site_path=trains.site, clock=clock, runner=SystemRunner())
    object.__setattr__(app, "counting", CountingRunner(env=slurm.env()))
    return app


def status(report: CycleReport, train: str = "t") -> tuple[Level, str]:
    finding = found(report, f"slurm_status/{train}")
    return finding.level, finding.summary


def runs(trains: Trains, name: str = "t") -> bool:
    return any(job.state is JobState.RUNNING for job in trains.rows(name))


def test_a_cycle_asks_twice_whatever_the_number_of_trains_and_accounting_once_for_all_that_vanished(
    trains: Trains, app: CountedApp
) -> None:
    for name in ("a", "b", "c", "d"):
        trains.opsctl("launch", trains.toml(name, command=SLEEP, extra=(), tasks=1, nodes=1))
    until(lambda: all(runs(trains, name) for name in "abcd"))
    cycle(app)
    app.counting.programs.clear()
    cycle(app)
    assert Counter(app.counting.programs) == {"squeue": 1, "sinfo": 1}
    for name in "abc":  # attempts of jobs that the queue has never heard of
        attempt = trains.run(name).attempt("999999_1.0")
        attempt.path.mkdir(parents=True)
    app.counting.programs.clear()
    cycle(app)
    assert Counter(app.counting.programs) == {"squeue": 1, "sinfo": 1, "sacct": 1}


def test_a_train_that_is_held_is_fine_until_it_is_forgotten(
    trains: Trains, app: CountedApp, clock: ForwardClock
) -> None:
    trains.opsctl("launch", trains.toml(extra=()))
    trains.opsctl("hold", "t", "--reason", "look at the data")
    until(lambda: trains.rows() and all(job.is_held for job in trains.rows()))
    report = cycle(app)
    assert (status(report)[0], found(report, "held/t").level) == (Level.OK, Level.OK)
    clock.ahead = timedelta(hours=13)
    report = cycle(app)
    assert found(report, "held/t").summary == "t has been held for 13.0 h (limit 12 h): look at the data"
    assert told(report) == [("held/t", Level.WARNING)]
    clock.ahead = timedelta(hours=25)
    assert told(cycle(app)) == [("held/t", Level.CRITICAL)]
    trains.opsctl("release", "t")
    until(lambda: not any(job.is_held for job in trains.rows()))
    assert told(cycle(app, "held")) == [("held/t", Level.OK)]


def test_what_will_never_start_is_not_scheduled(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    failing = slurm_says(
        slurm, "sbatch", "--hold", "--parsable", "--mem=1", "--output=/dev/null", "--wrap=exit 3"
    ).strip()
    trains.opsctl("launch", trains.toml(extra=(f"--dependency=afterok:{failing}",), command=("false",)))
    (array,) = trains.arrays()
    slurm_says(slurm, "scontrol", "release", failing)
    until(lambda: [job for job in trains.rows() if "NeverSatisfied" in job.reason])
    report = cycle(app)
    assert status(report) == (
        Level.CRITICAL, f"t: {array} will never start: the job before it failed"
    )  # fmt: skip
    assert ("slurm_status/t", Level.CRITICAL) in told(report)


def test_a_partition_that_is_down_is_told_when_it_lasts(
    trains: Trains, app: CountedApp, clock: ForwardClock, slurm: Sandbox
) -> None:
    trains.opsctl("launch", trains.toml(command=SLEEP))
    slurm_says(slurm, "scontrol", "update", "partition=main", "state=down")
    try:
        trains.opsctl("release", "t")
        until(lambda: [job for job in trains.rows() if job.reason == "PartitionDown"])
        assert status(cycle(app))[0] is Level.OK
        clock.ahead = timedelta(minutes=31)
        level, summary = status(cycle(app))
        assert (level, "the partition is down, for 31m" in summary) == (Level.WARNING, True)
    finally:
        slurm_says(slurm, "scontrol", "update", "partition=main", "state=up")
    until(lambda: runs(trains))
    assert ("slurm_status/t", Level.OK) in told(cycle(app))


def test_on_an_exclusive_allocation_waiting_is_wrong(trains: Trains, clock: ForwardClock, slurm: Sandbox) -> None:
    app = app_of(trains, clock, slurm, "exclusive_allocation_minutes = 5")
    trains.opsctl("launch", trains.toml(extra=("--begin=now+2hours",)))
    assert status(cycle(app))[0] is Level.OK
    clock.ahead = timedelta(minutes=6)
    level, summary = status(cycle(app))
    assert (level, "in an exclusive allocation, for 6m" in summary) == (Level.CRITICAL, True)


def test_a_train_that_somebody_cancelled_is_no_alarm(trains: Trains, app: CountedApp) -> None:
    trains.opsctl("launch", trains.toml())
    trains.opsctl("cancel", "t", "--reason", "wrong data")
    until(lambda: not trains.rows())
    level, summary = status(cycle(app))
    assert (level, summary.endswith(": wrong data")) == (Level.OK, True)


def test_a_train_that_was_cancelled_behind_our_back_is_one(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    (array,) = trains.arrays()
    slurm_says(slurm, "scancel", array)
    until(lambda: not trains.rows())
    assert status(cycle(app)) == (Level.CRITICAL, "t is neither running nor scheduled to run")


def test_a_job_that_was_started_by_hand_counts_where_the_train_names_it(
    trains: Trains, app: CountedApp, slurm: Sandbox
) -> None:
    name = "by hand; with a name of more than forty characters, $and |bars"
    trains.opsctl("launch", trains.toml(more='[watch]\nalso_jobs = ["by hand.*bars"]'))
    (array,) = trains.arrays()
    slurm_says(slurm, "scancel", array)
    job = slurm_says(
        slurm, "sbatch", "--parsable", "--hold", "--mem=1", f"--job-name={name}", "--output=/dev/null", "--wrap=true"
    )  # fmt: skip
    until(lambda: not trains.rows())
    assert status(cycle(app))[0] is Level.OK
    slurm_says(slurm, "scancel", job.strip())
    until(lambda: not [each for each in app.scheduler.jobs() if each.name == name and not each.state.is_final])
    assert status(cycle(app))[0] is Level.CRITICAL


def refusing(program: Path) -> str:
    """A program that fails; the PATH on which it comes first."""
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n")
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


def test_a_node_that_is_drained_under_a_train_is_told_and_over_when_it_is_back(
    trains: Trains, app: CountedApp, slurm: Sandbox, tmp_path: Path
) -> None:
    trains.opsctl("launch", trains.toml(command=SLEEP, extra=(), tasks=1))
    until(lambda: runs(trains))
    node = trains.rows()[0].nodes
    slurm_says(slurm, "scontrol", "update", f"nodename={node}", "state=drain", "reason=xid 79 | fell off")
    try:
        report = cycle(app, "node_health")
        assert told(report) == [(f"node_health/t/{node}", Level.WARNING)]
        assert found(report, f"node_health/t/{node}").summary.endswith("under t: xid 79 | fell off")
        app.counting.env["PATH"] = refusing(tmp_path / "bin/sinfo")
        assert told(cycle(app, "node_health")) == [("node_health/t", Level.UNKNOWN)]
        del app.counting.env["PATH"]
    finally:
        slurm_says(slurm, "scontrol", "update", f"nodename={node}", "state=resume")
    until(lambda: all(worst_severity(each.state) is Level.OK for each in app.scheduler.nodes()))
    assert sorted(told(cycle(app, "node_health"))) == [("node_health/t", Level.OK), (f"node_health/t/{node}", Level.OK)]


def test_a_slurm_that_does_not_answer_is_one_finding_and_takes_nothing_back(
    trains: Trains, app: CountedApp, slurm: Sandbox, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        trains.opsctl("launch", trains.toml(name))
        slurm_says(slurm, "scancel", *trains.arrays(name))
    until(lambda: not trains.rows("a") and not trains.rows("b"))
    assert len(told(cycle(app))) == 2
    app.counting.env["PATH"] = refusing(tmp_path / "bin/squeue")
    report = cycle(app)
    assert told(report) == [("slurm/site", Level.UNKNOWN)]
    looked = {finding.key for finding in report.findings}
    assert {"loss/a", "throughput/b", "checkpoint/a", "fs_quota/root", "cron_alive/site"} <= looked
    assert not {"hang/a", "slurm_status/a"} & looked
    del app.counting.env["PATH"]
    assert told(cycle(app)) == [("slurm/site", Level.OK)]


def test_a_cycle_that_was_not_told_how_nodes_are_pings_nobody(
    trains: Trains, clock: ForwardClock, slurm: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "ping").write_text("http://127.0.0.1:1/nobody-is-there")
    app = app_of(trains, clock, slurm, alerts=f'ping_url_file = "{tmp_path}/ping"')
    trains.opsctl("launch", trains.toml(command=SLEEP, extra=(), tasks=1))
    until(lambda: runs(trains))
    (problem,) = cycle(app).problems
    assert problem.startswith("alerting: ping: ")
    assert "Connection refused" in problem
    app.counting.env["PATH"] = refusing(tmp_path / "bin/sinfo")
    report = cycle(app)
    assert found(report, "node_health/t").level is Level.UNKNOWN
    assert not any("ping" in each for each in report.problems)


def test_of_two_cycles_at_once_one_tells(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    slurm_says(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    reports: list[CycleReport] = []
    both = [threading.Thread(target=lambda: reports.append(Watch(services=app).cycle())) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(len(told(report)) for report in reports) == [0, 1]
    assert [report.problems for report in reports] == [(), ()]


def test_a_train_that_was_removed_takes_its_alerts_with_it(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    slurm_says(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    assert told(cycle(app)) == [("slurm_status/t", Level.CRITICAL)]
    shutil.rmtree(trains.run().path)
    assert told(cycle(app)) == [("slurm_status/t", Level.OK)]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root, to become another user")
def test_a_team_mate_sees_it_all_and_tells_nobody(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    slurm_says(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    cycle(app, "held")
    before = (app.alerting.site.alerts / "ledger.json").read_text()
    text = as_user(65534, 65534, lambda: trains.opsctl("watch", "slurm_status"))
    assert "t is neither running nor scheduled to run" in text
    assert "told:" not in text
    assert (app.alerting.site.alerts / "ledger.json").read_text() == before


def test_a_train_that_cannot_be_read_stops_no_other(trains: Trains, app: CountedApp) -> None:
    for name in ("a", "b"):
        trains.opsctl("launch", trains.toml(name))
    config = trains.run("a").config.read_text()
    trains.run("a").config.write_text("name = ")
    report = cycle(app)
    assert told(report) == [("train/a", Level.WARNING)]
    assert status(report, "b")[0] is Level.OK
    trains.run("a").config.write_text(config)
    assert told(cycle(app)) == [("train/a", Level.OK)]


def test_a_watchdog_that_is_switched_off_takes_its_alert_with_it(
    trains: Trains, app: CountedApp, slurm: Sandbox
) -> None:
    trains.opsctl("launch", trains.toml())
    slurm_says(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    assert told(cycle(app)) == [("slurm_status/t", Level.CRITICAL)]
    with trains.run().config.open("a") as config:
        config.write('[watch]\noff = ["slurm_status"]\n')
    assert told(cycle(app, "hang")) == []
    assert told(cycle(app)) == [("slurm_status/t", Level.OK)]


def test_a_log_that_cannot_be_read_to_its_end_stops_nothing_else(
    trains: Trains, clock: ForwardClock, slurm: Sandbox
) -> None:
    app = app_of(trains, clock, slurm, "timeout_seconds = 10")
    for name in ("a", "b"):
        trains.opsctl("launch", trains.toml(name))
    log = trains.run("a").main_log
    os.mkfifo(log)  # another program that opened it to read would wait for ever
    watching = Watch(services=app)
    for _ in range(2):
        report = watching.cycle()
        assert found(report, "loss/a").summary == f"loss could not check a: {log}: not a regular file"
        assert {found(report, key).level for key in ("loss/b", "slurm_status/a", "slurm_status/b")} == {Level.OK}
        assert report.seconds < 10


def test_where_nothing_can_be_written_it_is_told_all_the_same(
    trains: Trains, app: CountedApp, slurm: Sandbox, tmp_path: Path
) -> None:
    trains.opsctl("launch", trains.toml())
    (array,) = trains.arrays()
    place = trains.root
    aside = tmp_path / "aside"
    shutil.copytree(place, aside, symlinks=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs to mount: {mounted.stderr.decode().strip()}")
    try:
        shutil.copytree(aside, place, symlinks=True, dirs_exist_ok=True)
        with pytest.raises(OSError, match="No space"):
            (place / "filler").write_bytes(bytes(4 << 20))
        slurm_says(slurm, "scancel", array)
        until(lambda: not trains.rows())
        assert {("slurm_status/t", Level.CRITICAL), ("fs_quota/root", Level.CRITICAL)} <= set(told(cycle(app)))
        report = cycle(app)
        assert told(report) == []
        assert any("No space left on device" in problem for problem in report.problems)
        (place / "filler").unlink()
        assert told(cycle(app)) == [("fs_quota/root", Level.OK)]
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_resident_watch_looks_again_until_it_is_interrupted(trains: Trains, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    slurm_says(slurm, "scancel", *trains.arrays())
    argv = [sys.executable, "-m", "opsctl", "--site", str(trains.site), "watch", "slurm_status", "--every", "1s"]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as watch:
        assert watch.stdout is not None
        lines = [watch.stdout.readline() for _ in range(5)]
        watch.send_signal(signal.SIGINT)
        watch.stdout.read()
    assert watch.wait() == 130
    assert sum("is neither running nor scheduled to run" in line for line in lines) >= 2
    assert sum(line.startswith("changed: ") for line in lines) == 1


@pytest.mark.parametrize(("interval", "problem"), [("0.5s", "is less than 1s"), ("soon", "is not a duration")])
def test_bad_interval_is_refused(trains: Trains, interval: str, problem: str) -> None:
    with pytest.raises(click.BadParameter, match=problem):
        trains.opsctl("watch", "--every", interval)


def test_nagios_gets_its_line_and_its_exit_code_and_nothing_is_done(
    trains: Trains, app: CountedApp, slurm: Sandbox
) -> None:
    trains.opsctl("launch", trains.toml())
    words = ("watch", "slurm_status", "--train", "t", "--nagios")
    (trains.run().switches / "pause").touch()
    assert trains.opsctl(*words, app=app).splitlines()[0] == "OK - 2 findings"
    slurm_says(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    assert trains.opsctl(*words, app=app).splitlines()[0] == "CRITICAL - t is neither running nor scheduled to run"
    assert not (app.alerting.site.alerts / "ledger.json").exists()
    assert not (trains.run().logs / "pulse.log").exists()
    trains.opsctl("watch", "slurm_status", "--dry-run", app=app)
    assert EventKind.ARMED not in trains.kinds(), "and nobody has reconciled to the train"
    assert trains.opsctl("watch", "--train", "zzz", "--nagios", app=app).startswith("UNKNOWN - no train 'zzz'")


def test_one_watchdog_can_be_looked_at_alone_and_printed_as_json(trains: Trains, app: CountedApp) -> None:
    trains.opsctl("launch", trains.toml())
    said = json.loads(trains.opsctl("watch", "held", "--train", "t", "--once", "--json", app=app))
    assert [each["key"] for each in said["findings"]] == ["held/t", "slurm/site"]


def test_a_watchdog_that_is_not_there_is_refused_with_those_that_are(app: CountedApp) -> None:
    with pytest.raises(InputError, match="no watchdog 'hnag'; there are: slurm_status, hang, failures"):
        Watch(services=app, names=["hnag"])
