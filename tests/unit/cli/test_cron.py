"""`opsctl cron` through the command line."""

import json
import os
import re
import shlex
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opsctl.app import App, build
from opsctl.base.errors import ConfigError, InputError, RunDirError
from opsctl.cli import cli
from opsctl.cron.cron_dir import SelectedDriver, read_selected, write_selected
from opsctl.cron.drivers.export import FORMATS
from opsctl.settings.cron import CronSettings

ODD = ["/opt/my python", "-m", "opsctl", "--site", "/x/100%/$HOME/site's.toml", "cron", "tick"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = tmp_path / "cron"
    directory.mkdir()
    (directory / "crontab").write_text("0 0 * * * echo daily\n*/10 * * * * echo often\n")
    file = tmp_path / "site.toml"
    file.write_text(
        f'root = "{tmp_path}/trains"\ntrust_parents = true\n[cron]\ndirectory = "{directory}"\ntime_zone = "UTC"\n'
    )
    return file


def opsctl(site: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--site", str(site), "cron", *words], standalone_mode=False)


def make_app(site: Path) -> App:
    return build(site)


def test_status_before_start_names_the_command(site: Path) -> None:
    text = opsctl(site, "status").output
    assert text.startswith("cron is not started: opsctl cron start\n")
    assert "echo often" in text
    assert not (site.parent / "trains").exists(), "status creates no directory"


def test_status_shows_last_result_and_next_run(site: Path) -> None:
    opsctl(site, "tick")
    moment = datetime.now(UTC)
    status = json.loads(opsctl(site, "status", "--json").output)
    daily, often = status["entries"]
    assert (often["id"], often["when"], often["result"]) == ("echo often", "*/10 * * * *", "ok")
    assert often["output"].endswith("-echo-often.txt")
    assert datetime.fromisoformat(often["next"]) > moment
    assert datetime.fromisoformat(daily["next"]).hour == 0
    assert status["is_overdue"] is False


def test_status_reports_scripts_that_will_not_run(site: Path) -> None:
    daily = site.parent / "cron" / "cron.daily"
    daily.mkdir()
    (daily / "plain").write_text("#!/bin/sh\n")
    (daily / "theirs").write_text("#!/bin/sh\n")
    (daily / "theirs").chmod(0o777)
    text = opsctl(site, "status").output
    assert "cron.daily/plain: not executable: chmod +x it" in text
    assert f"{daily}/theirs: mode 0777 lets others write" in text


def test_status_fails_when_ticks_are_overdue(site: Path) -> None:
    cron_dir = make_app(site).cron.place
    cron_dir.create()
    ago = datetime.now(UTC) - timedelta(hours=2)
    write_selected(cron_dir, SelectedDriver(driver="slurm", since=ago, by="me"))
    cron_dir.touch(ago)
    shutil.os.utime(cron_dir.selected, (ago.timestamp(), ago.timestamp()))  # type: ignore[attr-defined]  # it imports os
    result = opsctl(site, "status")
    assert result.return_value == 1
    assert "the slurm driver, since" in result.output
    assert re.search(r"last tick 2h( \dm)? ago, due every 10m; overdue: opsctl cron start", result.output)


def test_invalid_crontab_is_not_started(site: Path) -> None:
    (site.parent / "cron" / "crontab").write_text("* * * * x\n")
    error = opsctl(site, "start").exception
    assert isinstance(error, ConfigError)
    assert error.problems == (f"{site.parent}/cron/crontab:1: '* * * * x': needs five fields and a command",)


def test_crontab_writable_by_others_is_not_started(site: Path) -> None:
    (site.parent / "cron" / "crontab").chmod(0o666)
    error = opsctl(site, "start").exception
    assert isinstance(error, RunDirError)
    assert f"{site.parent}/cron/crontab: mode 0666 lets others write" in error.message


def test_second_driver_is_refused(site: Path) -> None:
    cron_dir = make_app(site).cron.place
    cron_dir.create()
    write_selected(cron_dir, SelectedDriver(driver="slurm", since=datetime.now(UTC), by="me"))
    error = opsctl(site, "start", "daemon").exception
    assert isinstance(error, InputError)
    assert error.message.startswith("cron is driven already, by the slurm driver, since")


def test_daemon_on_another_machine_leaves_at_its_tick(site: Path) -> None:
    cron_dir = make_app(site).cron.place
    cron_dir.create()
    cron_dir.touch(datetime.now(UTC))
    write_selected(
        cron_dir, SelectedDriver(driver="daemon", since=datetime.now(UTC), by="me", host="elsewhere", pid=1, started=1)
    )
    assert opsctl(site, "stop").output == "the daemon on elsewhere leaves at its next tick\n"
    assert read_selected(cron_dir) is None


def test_missing_external_ticks_are_reported(site: Path) -> None:
    line = opsctl(site, "export").output.splitlines()[-1]
    command = shlex.split(line.split(maxsplit=5)[5])
    subprocess.run(command, check=True, capture_output=True)
    assert opsctl(site, "status").output.startswith("an exported line on ")
    cron = make_app(site).cron
    late = cron.clock.now() - timedelta(hours=2)
    cron.place.touch(late)
    os.utime(cron.place.selected, (late.timestamp(), late.timestamp()))
    assert opsctl(site, "status").return_value == 1
    watch = CliRunner().invoke(cli, ["--site", str(site), "watch", "cron_alive"], standalone_mode=False).output
    assert "critical  cron_alive/site" in watch
    assert "still have the line of `opsctl cron export`?" in watch
    assert opsctl(site, "stop").output.startswith("stopped expecting ticks; the line on ")
    assert opsctl(site, "status").return_value == 0


def test_manual_tick_selects_no_driver(site: Path) -> None:
    opsctl(site, "tick")
    assert read_selected(make_app(site).cron.place) is None


def test_exported_tick_keeps_the_started_driver(site: Path) -> None:
    cron_dir = make_app(site).cron.place
    cron_dir.create()
    write_selected(cron_dir, SelectedDriver(driver="slurm", since=datetime.now(UTC), by="me"))
    opsctl(site, "tick", "--exported")
    selected = read_selected(cron_dir)
    assert selected is not None and selected.driver == "slurm"


@pytest.mark.root
def test_cron_of_another_user_is_left_alone(site: Path) -> None:
    cron_dir = make_app(site).cron.place
    cron_dir.create()
    shutil.os.chown(cron_dir.path, 12345, -1)  # type: ignore[attr-defined]  # it imports os
    error = opsctl(site, "tick").exception
    assert isinstance(error, RunDirError)
    assert error.message == f"{cron_dir.path}: belongs to 12345, who runs cron for this site"


def test_manual_tick_prints_failures(site: Path) -> None:
    (site.parent / "cron" / "crontab").write_text("*/10 * * * * exit 4\n")
    result = opsctl(site, "tick")
    assert result.return_value == 1
    assert "exit 4: failed exit 4, " in result.output
    assert json.loads(opsctl(site, "tick", "--json").stdout) == {}


@pytest.mark.parametrize("form", ["crontab", "scrontab"])
def test_exported_line_survives_cron_and_shell(form: str) -> None:
    line = FORMATS[form](ODD, CronSettings(partition="cpu")).splitlines()[-1]
    minutes, *stars, command = line.split(maxsplit=5)
    assert (minutes, stars) == ("*/10", ["*"] * 4)
    assert "%" not in command.replace(r"\%", ""), "cron reads % as a line feed"
    shown = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {command.replace(chr(92) + '%', '%')}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == [*ODD, "--exported"]


def test_scrontab_line_has_slurm_options() -> None:
    text = FORMATS["scrontab"](ODD, CronSettings(partition="cpu", account="me"))
    assert "#SCRON --partition=cpu\n#SCRON --account=me\n#SCRON --mem=1G\n#SCRON --time=30\n" in text


@pytest.mark.parametrize(
    ("minutes", "crontab", "calendar"), [(1, "*", "*:0/1"), (15, "*/15", "*:0/15"), (60, "0", "hourly")]
)
def test_tick_interval_becomes_a_schedule(minutes: int, crontab: str, calendar: str) -> None:
    settings = CronSettings(tick_minutes=minutes)
    assert FORMATS["crontab"](["x"], settings).splitlines()[-1] == f"{crontab} * * * * x --exported"
    assert f"\nOnCalendar={calendar}\n" in FORMATS["systemd-timer"](["x"], settings)


def test_systemd_units_are_quoted() -> None:
    line = '"/opt/my python" -m opsctl --site "/x/100%%/$$HOME/site\'s.toml" cron'
    assert f"\nExecStart={line} tick --exported\n" in FORMATS["systemd-timer"](ODD, CronSettings())
    assert f"\nExecStart={line} start daemon\n" in FORMATS["systemd-service"](ODD, CronSettings())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    unit = tmp_path / "opsctl-cron.service"
    unit.write_text(FORMATS["systemd-service"](["/bin/true", "a b", "tick"], CronSettings()))
    result = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "opsctl-cron" not in result.stderr


def test_stop_before_any_start_has_its_lease(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_app(site).cron.place.path.mkdir(parents=True)  # by another command
    opsctl(site, "stop")
    assert "without a lease" not in caplog.text


def test_stop_prints_json(site: Path) -> None:
    cron_dir = make_app(site).cron.place
    cron_dir.create()
    write_selected(cron_dir, SelectedDriver(driver="export", since=datetime.now(UTC), by="me", host="login1"))
    stopped = json.loads(opsctl(site, "stop", "--json").stdout)
    assert (stopped["driver"], stopped["cancelled"]) == ("export", [])
    assert stopped["done"].startswith("stopped expecting ticks; the line on login1 still ticks")
    assert read_selected(cron_dir) is None
