"""What `opsctl doctor` says of cron. Of Slurm and of alerts: tests/integration/slurm and tests/integration/alerts."""

import json
import os
import sys
import time
import types
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.cron.cron_dir import CronDir
from opsctl.cron.drivers.selected_driver import SelectedDriver, write_selected
from opsctl.state.site_dir import SiteDir


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(f'engine = "sandbox"\nsandbox = "none-such"\nroot = "{tmp_path}/trains"\ntrust_parents = true\n')
    return path


def doctor(site: Path) -> list[dict]:
    return json.loads(CliRunner().invoke(cli, ["--site", str(site), "doctor", "--json"]).output)


def cron_line(site: Path) -> dict:
    return next(line for line in doctor(site) if line["check"] == "cron")


def ticked(site: Path, *, ago: float, wanted: bool) -> None:
    place = CronDir(SiteDir.of(site.parent / "trains"))
    place.create()
    then = time.time() - ago
    place.touch(datetime.fromtimestamp(then, UTC))
    if wanted:
        since = datetime.fromtimestamp(then - 10, UTC)
        write_selected(place, SelectedDriver(driver="daemon", since=since, by="me", host="login1", pid=1, started=1))
        os.utime(place.selected, (then, then))


def test_where_nobody_ticks_it_says_how_to_begin(site):
    line = cron_line(site)
    assert (line["level"], line["advice"]) == ("optional", "opsctl cron start")
    assert line["result"].startswith("not started: ")


def test_a_crontab_of_the_system_is_seen_by_its_ticks(site):
    ticked(site, ago=100, wanted=False)
    line = cron_line(site)
    assert line["level"] == "ok"
    assert line["result"].startswith("external ticks; last tick 20")


def test_ticks_that_do_not_come_are_missing(site):
    ticked(site, ago=7200, wanted=True)
    line = cron_line(site)
    assert (line["level"], line["advice"]) == ("missing", "opsctl cron start")
    assert line["result"].endswith(": overdue")


def test_a_file_that_makes_no_sense_does_not_stop_it(site):
    ticked(site, ago=7200, wanted=True)
    wanted = CronDir(SiteDir.of(site.parent / "trains")).selected
    wanted.write_text("{")
    os.utime(wanted, (0, 0))
    assert cron_line(site)["level"] == "missing"


def test_a_site_file_and_secrets_that_others_could_write_or_read_are_told(site, tmp_path):
    secret = tmp_path / "hook"
    secret.write_text("https://hooks.example.org/T/B/x\n")
    site.write_text(
        site.read_text() + f'[alerts.channels.team]\nkind = "slack"\nwebhook_file = "{secret}"\n'
        f'[alerts]\nping_url_file = "{secret}"\n'
    )
    site.chmod(0o664)
    secret.chmod(0o644)
    found = {(each["check"], each["advice"]) for each in doctor(site) if each["level"] == "missing"}
    assert {("site file", f"chmod go-w {site}"), ("alerts team", f"chmod 600 {secret}"),
            ("alerts ping", f"chmod 600 {secret}")} <= found  # fmt: skip
    site.chmod(0o644)
    secret.chmod(0o600)
    assert not {each["check"] for each in doctor(site) if each["advice"].startswith("chmod")}


def extra_rows(site: Path) -> dict[str, dict]:
    return {row["check"]: row for row in doctor(site) if row["check"].startswith("extra ")}


def test_imported_module_without_a_spec_is_installed(site, monkeypatch):
    """Such as a module that another program made: importlib.util.find_spec raises ValueError."""
    monkeypatch.setitem(sys.modules, "tokenizers", types.ModuleType("tokenizers"))
    assert "tokenizers" not in extra_rows(site)["extra trainer"]["result"]


def test_module_of_a_broken_import_hook_is_unknown(site, monkeypatch):
    class BrokenHook:
        def find_spec(self, name, path=None, target=None):
            if name == "pyslurm":
                raise ImportError("the hook is broken")

    monkeypatch.delitem(sys.modules, "pyslurm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [BrokenHook(), *sys.meta_path])
    row = extra_rows(site)["extra pyslurm"]
    assert (row["level"], "the hook is broken" in row["result"]) == ("unknown", True)
