"""The ping of a complete watch cycle, and the report of undelivered alerts."""

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from opsctl.app import build
from opsctl.base.errors import OpsctlError
from opsctl.base.findings import Severity
from opsctl.cli import cli
from opsctl.cron.cron_dir import SelectedDriver, write_selected
from opsctl.monitor.steady_clock import SteadyClock
from opsctl.monitor.watch_cycle import Watch
from opsctl.state.run_dir import RunDir
from opsctl.watchdogs import WATCHDOGS
from opsctl.watchdogs.cron_alive import CronAlive
from tests.support.findings import make_finding
from tests.support.watched_trains import ForwardClock

TRAIN = 'name = "gpt"\ncommand = ["x"]\n[slurm]\nnodes = 1\nprocesses_per_node = 1\ntime_limit = "60"\n'


@pytest.fixture
def site(tmp_path, monkeypatch, web):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "trains").mkdir()
    path = tmp_path / "site.toml"
    path.write_text(f'root = "{tmp_path}/trains"\n[alerts]\nping_url = "{web.url}/ping"\n')
    path.chmod(0o600)
    return path


def count_pings(web):
    return [path for path, *_ in web.requests].count("/ping")


def test_complete_cycle_pings(site, web):
    Watch(app=build(site)).cycle()
    assert count_pings(web) == 1


@pytest.mark.parametrize("part", [{"names": ["fs_quota"]}, {"trains": ["gpt"]}, {"acts": False}])
def test_partial_cycle_does_not_ping(site, web, part):
    Watch(app=build(site), **part).cycle()
    assert count_pings(web) == 0


def test_cycle_with_a_failed_watchdog_does_not_ping(site, web, monkeypatch):
    class Broken(CronAlive):
        def probe(self, scene, thing):
            raise OpsctlError("cannot look")

    monkeypatch.setitem(WATCHDOGS, "cron_alive", Broken())
    report = Watch(app=build(site)).cycle()
    assert [finding.severity for finding in report.findings if finding.key == "cron_alive/site"] == [Severity.UNKNOWN]
    assert count_pings(web) == 0


def test_cycle_without_slurm_does_not_ping(site, web, monkeypatch):
    run = RunDir(site.parent / "trains" / "gpt")
    run.create()
    run.config.write_text(TRAIN)
    monkeypatch.setenv("PATH", "/nonexistent")
    report = Watch(app=build(site)).cycle()
    assert [finding.severity for finding in report.findings if finding.key == "slurm/site"] == [Severity.UNKNOWN]
    assert count_pings(web) == 0


def test_cycle_without_reconciling_does_not_ping(site, web, monkeypatch):
    run = RunDir(site.parent / "trains" / "gpt")
    run.create()
    run.config.write_text(TRAIN)
    squeue = site.parent / "squeue"
    squeue.write_text("#!/bin/sh\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{site.parent}:/usr/bin:/bin")
    Watch(app=build(site)).cycle()
    assert count_pings(web) == 1

    def fail(*_):
        raise OpsctlError("no answer")

    monkeypatch.setattr("opsctl.monitor.reconcile._reconcile_one", fail)
    assert Watch(app=build(site)).cycle().problems == ("reconciling gpt: no answer",)
    assert count_pings(web) == 1


# --- the command


def run_watch(site, *words):
    return CliRunner().invoke(cli, ["--site", str(site), "watch", *words], standalone_mode=False)


def test_watch_reports_undelivered_alerts(site):
    mail = 'kind = "email"\nto = ["me@example.org"]\nsender = "opsctl@example.org"\nport = 1\n'
    disk = f'[[filesystem]]\nname = "scratch"\npath = "{site.parent}"\nfree = "9P"\n'
    with site.open("a") as file:
        file.write(f"[alerts.channels.mail]\n{mail}{disk}")
    result = run_watch(site)
    assert "changed: fs_quota/scratch: ok -> critical" in result.output
    assert "not delivered by mail, tried again later: localhost:1: [Errno 111] Connection re" in result.output


def test_watch_without_trains_reports_that(site):
    printed = run_watch(site, "hang").stdout
    assert printed == "nothing to watch: there are no trains; opsctl launch TRAIN.toml starts one\n"


def test_watch_revives_dead_cron_except_in_a_dry_run(site):
    app = build(site)
    app.cron.place.create()
    ago = datetime.now(UTC) - timedelta(hours=2)
    write_selected(app.cron.place, SelectedDriver(driver="daemon", since=ago, by="me"))
    app.cron.place.touch(ago)
    os.utime(app.cron.place.selected, (ago.timestamp(), ago.timestamp()))
    assert "opsctl cron start daemon brings it back" in run_watch(site, "fs_quota").output
    assert "brings it back" not in run_watch(site, "fs_quota", "--dry-run").output
    assert "brings it back" not in run_watch(site, "fs_quota", "--nagios").output


def test_clock_that_jumps_ahead_misses_no_tick(site):
    clock = ForwardClock()
    app = build(site).with_clock(SteadyClock(clock))
    app.cron.place.create()
    write_selected(app.cron.place, SelectedDriver(driver="daemon", since=clock.now(), by="me"))
    severities = []
    for clock.skew in (timedelta(), timedelta(hours=6), timedelta(hours=-6), timedelta()):
        app.cron.place.touch(clock.real.now() + clock.ahead)
        findings = Watch(app=app, names=["cron_alive"]).cycle().findings
        severities += [finding.severity for finding in findings if finding.key == "cron_alive/site"]
        clock.ahead += timedelta(minutes=10)
    assert severities == [Severity.OK] * 4


def test_alert_recorded_during_a_cycle_is_not_resolved_by_that_cycle(site, monkeypatch):
    app = build(site)
    late = make_finding(key="cron_alive/site", severity=Severity.CRITICAL, summary="no tick")

    class Slow(CronAlive):
        def judge(self, observation, now):
            if not app.alerting.ledger.entries():
                app.alerting.ledger.record([late])  # another watcher
            return [replace(late, severity=Severity.OK)]

    monkeypatch.setitem(WATCHDOGS, "cron_alive", Slow())
    watching = Watch(app=app, names=["cron_alive"])
    watching.cycle()
    assert app.alerting.ledger.entries()[late.key].severity is Severity.CRITICAL
    watching.cycle()
    assert app.alerting.ledger.entries()[late.key].severity is Severity.OK


def test_watch_command_keeps_a_time_line(site):
    run_watch(site, "fs_quota")
    assert (site.parent / "trains/.site/watch/clock/site.json").exists()


def test_hanging_channel_does_not_stop_the_cycle(site, monkeypatch):
    monkeypatch.setattr("opsctl.monitor.alert_people.SEND_WAIT_S", 0.2)
    (site.parent / "trains" / "gpt").mkdir()
    (site.parent / "trains" / "gpt" / "train.toml").write_text("name = 5\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        site.write_text(
            f'root = "{site.parent}/trains"\n[alerts]\nwarning_looks = 1\n'
            f'[alerts.channels.slack]\nkind = "slack"\nwebhook = "{url}"\n'
        )
        watching = Watch(app=build(site))
        report = watching.cycle()
        assert [transition.finding.key for transition in report.transitions] == ["train/gpt"]
        assert report.deliveries == ()
        assert report.seconds < 10  # Slack alone waits 15 s for an answer


@pytest.mark.parametrize(("name", "reports_slurm"), [("fs_quota", False), ("cron_alive", False), ("hang", True)])
def test_watchdog_alone_needs_its_own_sources_only(site, name, reports_slurm):
    """Slurm does not answer, and the settings of a train cannot be read."""
    broken = build(site).root / "broken"
    broken.mkdir(parents=True)
    (broken / "train.toml").write_text("[")
    findings = Watch(app=build(site), names=[name], acts=False).cycle().findings
    keys = {finding.key for finding in findings}
    assert ({"slurm/site", "train/broken"} <= keys) is reports_slurm
    assert reports_slurm or keys == {f"{name}/{'root' if name == 'fs_quota' else 'site'}"}
