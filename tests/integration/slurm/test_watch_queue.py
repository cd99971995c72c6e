"""Watch cycles on a real Slurm: the queries of a cycle, and its findings for each kind of waiting."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path

import click
import pytest

from opsctl.base.errors import InputError
from opsctl.base.findings import Severity
from opsctl.base.model import JobState
from opsctl.host.system import SystemRunner
from opsctl.monitor.cycle_report import CycleReport
from opsctl.monitor.watch_cycle import Watch
from opsctl.sandbox.cluster import Sandbox
from opsctl.settings.loader import load_site
from opsctl.state.events import SwitchArmed
from opsctl.watchdogs.node_health import worst_severity
from tests.support.mounts import mounting
from tests.support.slurms import run_slurm
from tests.support.trains import Trains, as_user, until
from tests.support.watched_trains import CountedApp, CountingRunner, ForwardClock, cycle, find_finding, list_transitions

SLEEP = ("sleep", "600")


@pytest.fixture
def clock() -> ForwardClock:
    return ForwardClock()


@pytest.fixture
def app(trains: Trains, clock: ForwardClock, slurm: Sandbox) -> CountedApp:
    return app_of(trains, clock, slurm)


def app_of(trains: Trains, clock: ForwardClock, slurm: Sandbox, watch: str = "", alerts: str = "") -> CountedApp:
    with trains.site.open("a") as file:
        file.write(f"[watch]\n{watch}\n[alerts]\nwarning_looks = 1\nunknown_minutes = 0\nslurm_minutes = 0\n{alerts}\n")
    app = CountedApp(site=load_site(trains.site), site_path=trains.site, clock=clock, runner=SystemRunner())
    object.__setattr__(app, "counting", CountingRunner(env=slurm.env()))
    return app


def status(report: CycleReport, train: str = "t") -> tuple[Severity, str]:
    finding = find_finding(report, f"slurm_status/{train}")
    return finding.severity, finding.summary


def is_running(trains: Trains, name: str = "t") -> bool:
    return any(job.state is JobState.RUNNING for job in trains.rows(name))


def test_cycle_runs_three_slurm_commands_at_most(trains: Trains, app: CountedApp) -> None:
    for name in ("a", "b", "c", "d"):
        trains.opsctl("launch", trains.toml(name, command=SLEEP, extra=(), tasks=1, nodes=1))
    until(lambda: all(is_running(trains, name) for name in "abcd"))
    cycle(app)
    app.counting.programs.clear()
    cycle(app)
    assert Counter(app.counting.programs) == {"squeue": 1, "sinfo": 1}
    for name in "abc":  # attempts of jobs that are not in the queue
        attempt = trains.run(name).attempt("999999_1.0")
        attempt.path.mkdir(parents=True)
    app.counting.programs.clear()
    cycle(app)
    assert Counter(app.counting.programs) == {"squeue": 1, "sinfo": 1, "sacct": 1}


def test_long_held_train_is_reported(trains: Trains, app: CountedApp, clock: ForwardClock) -> None:
    trains.opsctl("launch", trains.toml(extra=("--begin=now+1day",)))
    trains.opsctl("hold", "t", "--reason", "look at the data")
    until(lambda: trains.rows() and all(job.is_held for job in trains.rows()))
    report = cycle(app)
    assert (status(report)[0], find_finding(report, "held/t").severity) == (Severity.OK, Severity.OK)
    clock.ahead = timedelta(hours=13)
    report = cycle(app)
    assert find_finding(report, "held/t").summary == "t has been held for 13.0 h (limit 12 h): look at the data"
    assert list_transitions(report) == [("held/t", Severity.WARNING)]
    clock.ahead = timedelta(hours=25)
    assert list_transitions(cycle(app)) == [("held/t", Severity.CRITICAL)]
    trains.opsctl("release", "t")
    until(lambda: not any(job.is_held for job in trains.rows()))
    assert list_transitions(cycle(app, "held")) == [("held/t", Severity.OK)]


def test_task_that_will_never_start_is_critical(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    failing = run_slurm(
        slurm, "sbatch", "--hold", "--parsable", "--mem=1", "--output=/dev/null", "--wrap=exit 3"
    ).strip()
    trains.opsctl("launch", trains.toml(extra=(f"--dependency=afterok:{failing}",), command=("false",)))
    (array,) = trains.arrays()
    run_slurm(slurm, "scontrol", "release", failing)
    until(lambda: [job for job in trains.rows() if "NeverSatisfied" in job.reason])
    report = cycle(app)
    assert status(report) == (Severity.CRITICAL, f"t: array {array} will never start: the job before it failed")
    assert ("slurm_status/t", Severity.CRITICAL) in list_transitions(report)


def test_partition_down_for_long_is_reported(
    trains: Trains, app: CountedApp, clock: ForwardClock, slurm: Sandbox
) -> None:
    trains.opsctl("launch", trains.toml(command=SLEEP))
    run_slurm(slurm, "scontrol", "update", "partition=main", "state=down")
    try:
        trains.opsctl("release", "t")
        until(lambda: [job for job in trains.rows() if job.reason == "PartitionDown"])
        assert status(cycle(app))[0] is Severity.OK
        clock.ahead = timedelta(minutes=31)
        severity, summary = status(cycle(app))
        parts = ("t has waited for 31m: array", "the partition is down")
        assert (severity, [part in summary for part in parts]) == (Severity.WARNING, [True, True])
    finally:
        run_slurm(slurm, "scontrol", "update", "partition=main", "state=up")
    until(lambda: is_running(trains))
    assert ("slurm_status/t", Severity.OK) in list_transitions(cycle(app))


def test_waiting_in_an_exclusive_allocation_is_critical(trains: Trains, clock: ForwardClock, slurm: Sandbox) -> None:
    app = app_of(trains, clock, slurm, "exclusive_allocation_minutes = 5")
    trains.opsctl("launch", trains.toml(extra=("--begin=now+2hours",)))
    assert status(cycle(app))[0] is Severity.OK
    clock.ahead = timedelta(minutes=6)
    severity, summary = status(cycle(app))
    parts = ("t has waited for 6m", "in an exclusive allocation: array")
    assert (severity, [part in summary for part in parts]) == (Severity.CRITICAL, [True, True])


def test_train_cancelled_with_opsctl_is_ok(trains: Trains, app: CountedApp) -> None:
    trains.opsctl("launch", trains.toml())
    trains.opsctl("cancel", "t", "--reason", "wrong data")
    until(lambda: not trains.rows())
    severity, summary = status(cycle(app))
    assert (severity, summary.endswith(": wrong data")) == (Severity.OK, True)


def test_train_cancelled_with_scancel_is_critical(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    (array,) = trains.arrays()
    run_slurm(slurm, "scancel", array)
    until(lambda: not trains.rows())
    assert status(cycle(app)) == (Severity.CRITICAL, "t has stopped: no task runs, and none is queued")


def test_job_started_by_hand_counts_for_the_train(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    name = "by hand; with a name of more than forty characters, $and |bars"
    trains.opsctl("launch", trains.toml(more='[watch]\nalso_jobs = ["by hand.*bars"]'))
    (array,) = trains.arrays()
    run_slurm(slurm, "scancel", array)
    job = run_slurm(
        slurm, "sbatch", "--parsable", "--hold", "--mem=1", f"--job-name={name}", "--output=/dev/null", "--wrap=true"
    )
    until(lambda: not trains.rows())
    assert status(cycle(app))[0] is Severity.OK
    run_slurm(slurm, "scancel", job.strip())
    until(lambda: not [row for row in app.slurm.jobs() if row.name == name and not row.state.is_final])
    assert status(cycle(app))[0] is Severity.CRITICAL


def write_failing_program(program: Path) -> str:
    """Write a program that fails, and return a PATH on which the program comes first."""
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n")
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


def test_drained_node_of_a_train_is_reported_and_resolved(
    trains: Trains, app: CountedApp, slurm: Sandbox, tmp_path: Path
) -> None:
    trains.opsctl("launch", trains.toml(command=SLEEP, extra=(), tasks=1))
    until(lambda: is_running(trains))
    node = trains.rows()[0].nodes
    run_slurm(slurm, "scontrol", "update", f"nodename={node}", "state=drain", "reason=xid 79 | fell off")
    try:
        report = cycle(app, "node_health")
        assert list_transitions(report) == [(f"node_health/t/{node}", Severity.WARNING)]
        assert find_finding(report, f"node_health/t/{node}").summary.endswith("under t: xid 79 | fell off")
        app.counting.env["PATH"] = write_failing_program(tmp_path / "bin/sinfo")
        assert list_transitions(cycle(app, "node_health")) == [("node_health/t", Severity.UNKNOWN)]
        del app.counting.env["PATH"]
    finally:
        run_slurm(slurm, "scontrol", "update", f"nodename={node}", "state=resume")
    until(lambda: all(worst_severity(row.state) is Severity.OK for row in app.slurm.nodes()))
    assert sorted(list_transitions(cycle(app, "node_health"))) == [
        ("node_health/t", Severity.OK),
        (f"node_health/t/{node}", Severity.OK),
    ]


def test_unreachable_slurm_is_one_finding(trains: Trains, app: CountedApp, slurm: Sandbox, tmp_path: Path) -> None:
    for name in ("a", "b"):
        trains.opsctl("launch", trains.toml(name))
        run_slurm(slurm, "scancel", *trains.arrays(name))
    until(lambda: not trains.rows("a") and not trains.rows("b"))
    assert len(list_transitions(cycle(app))) == 2
    app.counting.env["PATH"] = write_failing_program(tmp_path / "bin/squeue")
    report = cycle(app)
    assert list_transitions(report) == [("slurm/site", Severity.UNKNOWN)]
    keys = {finding.key for finding in report.findings}
    assert {"loss/a", "throughput/b", "checkpoint/a", "fs_quota/root", "cron_alive/site"} <= keys
    assert not {"hang/a", "slurm_status/a"} & keys
    del app.counting.env["PATH"]
    assert list_transitions(cycle(app)) == [("slurm/site", Severity.OK)]


def test_cycle_without_node_states_sends_no_ping(
    trains: Trains, clock: ForwardClock, slurm: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "ping").write_text("http://127.0.0.1:1/nobody-is-there")
    app = app_of(trains, clock, slurm, alerts=f'ping_url_file = "{tmp_path}/ping"')
    trains.opsctl("launch", trains.toml(command=SLEEP, extra=(), tasks=1))
    until(lambda: is_running(trains))
    (problem,) = cycle(app).problems
    assert problem.startswith("alerting: ping: ")
    assert "Connection refused" in problem
    app.counting.env["PATH"] = write_failing_program(tmp_path / "bin/sinfo")
    report = cycle(app)
    assert find_finding(report, "node_health/t").severity is Severity.UNKNOWN
    assert not any("ping" in problem for problem in report.problems)


def test_simultaneous_cycles_alert_once(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    run_slurm(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    reports: list[CycleReport] = []
    both = [threading.Thread(target=lambda: reports.append(Watch(app=app).cycle())) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(len(list_transitions(report)) for report in reports) == [0, 1]
    assert [report.problems for report in reports] == [(), ()]


def test_removed_train_with_a_task_to_do_waits_for_a_person(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    run_slurm(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    assert list_transitions(cycle(app)) == [("slurm_status/t", Severity.CRITICAL)]
    shutil.rmtree(trains.run().path)
    assert list_transitions(cycle(app)) == [("train/t", Severity.WARNING)]
    trains.opsctl("alerts", "ack", "train/t", "--reason", "removed")
    assert {*list_transitions(cycle(app))} == {("slurm_status/t", Severity.OK), ("train/t", Severity.OK)}


@pytest.mark.root
def test_cycle_of_a_team_mate_records_nothing(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    run_slurm(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    cycle(app, "held")
    before = (app.alerting.site.alerts / "ledger.json").read_text()
    text = as_user(65534, 65534, lambda: trains.opsctl("watch", "slurm_status"))
    assert "t has stopped: no task runs, and none is queued" in text
    assert "told:" not in text
    assert (app.alerting.site.alerts / "ledger.json").read_text() == before


def test_unreadable_train_does_not_stop_the_others(trains: Trains, app: CountedApp) -> None:
    for name in ("a", "b"):
        trains.opsctl("launch", trains.toml(name))
    config = trains.run("a").config.read_text()
    trains.run("a").config.write_text("name = ")
    report = cycle(app)
    assert list_transitions(report) == [("train/a", Severity.WARNING)]
    assert status(report, "b")[0] is Severity.OK
    trains.run("a").config.write_text(config)
    assert list_transitions(cycle(app)) == [("train/a", Severity.OK)]


def test_alert_of_a_disabled_watchdog_is_resolved(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    run_slurm(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    assert list_transitions(cycle(app)) == [("slurm_status/t", Severity.CRITICAL)]
    with trains.run().config.open("a") as config:
        config.write('[watch]\noff = ["slurm_status"]\n')
    assert list_transitions(cycle(app, "hang")) == []
    assert list_transitions(cycle(app)) == [("slurm_status/t", Severity.OK)]


def test_unreadable_log_stops_no_other_watchdog(trains: Trains, clock: ForwardClock, slurm: Sandbox) -> None:
    app = app_of(trains, clock, slurm, "timeout_seconds = 10")
    for name in ("a", "b"):
        trains.opsctl("launch", trains.toml(name))
    log = trains.run("a").main_log
    os.mkfifo(log)  # another program that opened it to read would wait for ever
    watching = Watch(app=app)
    for _ in range(2):
        report = watching.cycle()
        why = f"the watchdog loss could not check a: {log}: not a regular file"
        assert find_finding(report, "loss/a").summary == why
        assert all(find_finding(report, key).is_ok for key in ("loss/b", "slurm_status/a", "slurm_status/b"))
        assert report.seconds < 10


@pytest.mark.root
def test_full_disk_does_not_stop_alerts(trains: Trains, app: CountedApp, slurm: Sandbox, tmp_path: Path) -> None:
    trains.opsctl("launch", trains.toml())
    (array,) = trains.arrays()
    place = trains.root
    aside = tmp_path / "aside"
    shutil.copytree(place, aside, symlinks=True)
    with mounting(place, "size=2m"):
        shutil.copytree(aside, place, symlinks=True, dirs_exist_ok=True)
        with pytest.raises(OSError, match="No space"):
            (place / "filler").write_bytes(bytes(4 << 20))
        run_slurm(slurm, "scancel", array)
        until(lambda: not trains.rows())
        assert {("slurm_status/t", Severity.CRITICAL), ("fs_quota/root", Severity.CRITICAL)} <= set(
            list_transitions(cycle(app))
        )
        report = cycle(app)
        assert list_transitions(report) == []
        assert any("No space left on device" in problem for problem in report.problems)
        (place / "filler").unlink()
        assert list_transitions(cycle(app)) == [("fs_quota/root", Severity.OK)]


def test_resident_watch_repeats_until_interrupted(trains: Trains, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    run_slurm(slurm, "scancel", *trains.arrays())
    argv = [sys.executable, "-m", "opsctl", "--site", str(trains.site), "watch", "slurm_status", "--every", "1s"]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as watch:
        assert watch.stdout is not None
        lines = [watch.stdout.readline() for _ in range(5)]
        watch.send_signal(signal.SIGINT)
        watch.stdout.read()
    assert watch.wait() == 130
    assert sum("has stopped: no task runs, and none is queued" in line for line in lines) >= 2
    assert sum(line.startswith("changed: ") for line in lines) == 1


@pytest.mark.parametrize(("interval", "problem"), [("0.5s", "is less than 1s"), ("soon", "is not a duration")])
def test_bad_interval_is_refused(trains: Trains, interval: str, problem: str) -> None:
    with pytest.raises(click.BadParameter, match=problem):
        trains.opsctl("watch", "--every", interval)


def test_nagios_output_changes_nothing(trains: Trains, app: CountedApp, slurm: Sandbox) -> None:
    trains.opsctl("launch", trains.toml())
    words = ("watch", "slurm_status", "--train", "t", "--nagios")
    (trains.run().switches / "pause").touch()
    assert trains.opsctl(*words, app=app).splitlines()[0] == "OK - 2 findings"
    run_slurm(slurm, "scancel", *trains.arrays())
    until(lambda: not trains.rows())
    assert "CRITICAL - t has stopped: no task runs" in trains.opsctl(*words, app=app).splitlines()[0]
    assert not (app.alerting.site.alerts / "ledger.json").exists()
    assert not (trains.run().logs / "pulse.log").exists()
    trains.opsctl("watch", "slurm_status", "--dry-run", app=app)
    assert SwitchArmed not in trains.kinds(), "a dry run does not reconcile the train"
    assert trains.opsctl("watch", "--train", "zzz", "--nagios", app=app).startswith("UNKNOWN - no train 'zzz'")


def test_single_watchdog_is_printed_as_json(trains: Trains, app: CountedApp) -> None:
    trains.opsctl("launch", trains.toml())
    report = json.loads(trains.opsctl("watch", "held", "--train", "t", "--once", "--json", app=app))
    assert [finding["key"] for finding in report["findings"]] == ["held/t", "slurm/site"]


def test_unknown_watchdog_is_refused_with_the_known_ones(app: CountedApp) -> None:
    with pytest.raises(InputError, match="no watchdog 'hnag'; there are: slurm_status, hang, failures"):
        Watch(app=app, names=["hnag"])
