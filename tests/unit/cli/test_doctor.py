"""Cron and file modes in `opsctl doctor`. Slurm and alerts: tests/integration/slurm and tests/integration/alerts."""

import json
import os
import shutil
import sys
import time
import types
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.cron.cron_dir import CronDir, SelectedDriver, write_selected
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


def write_tick(site: Path, *, ago: float, is_selected: bool) -> None:
    cron_dir = CronDir(SiteDir.of(site.parent / "trains"))
    cron_dir.create()
    then = time.time() - ago
    cron_dir.touch(datetime.fromtimestamp(then, UTC))
    if is_selected:
        since = datetime.fromtimestamp(then - 10, UTC)
        write_selected(cron_dir, SelectedDriver(driver="daemon", since=since, by="me", host="login1", pid=1, started=1))
        os.utime(cron_dir.selected, (then, then))


def test_cron_without_ticks_names_the_start_command(site):
    line = cron_line(site)
    assert (line["severity"], line["advice"]) == ("optional", "opsctl cron start")
    assert line["result"].startswith("not started: ")


def test_external_ticks_are_ok(site):
    write_tick(site, ago=100, is_selected=False)
    line = cron_line(site)
    assert line["severity"] == "ok"
    assert line["result"].startswith("external ticks; last tick 20")


def test_overdue_ticks_are_missing(site):
    write_tick(site, ago=7200, is_selected=True)
    line = cron_line(site)
    assert (line["severity"], line["advice"]) == ("missing", "opsctl cron start")
    assert line["result"].endswith(": overdue")


def test_invalid_driver_file_does_not_stop_doctor(site):
    write_tick(site, ago=7200, is_selected=True)
    selected = CronDir(SiteDir.of(site.parent / "trains")).selected
    selected.write_text("{")
    os.utime(selected, (0, 0))
    assert cron_line(site)["severity"] == "missing"


def test_machine_that_is_too_small_or_without_bf16_is_named(site, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 18}.__getitem__)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(total=1 << 30, free=1 << 20))
    rows = {row["check"]: row for row in doctor(site)}
    assert {rows[check]["severity"] for check in ("processor", "cores", "memory", "disk")} == {"optional"}
    assert rows["processor"]["result"].endswith("no bf16 instructions; bf16 takes 30 times as long as fp32")
    assert rows["cores"]["result"] == "1: demo and trainer need 2"
    assert rows["memory"]["result"] == "1 GiB: demo and trainer need 2 GiB"
    assert rows["disk"]["result"].startswith("1 MiB: demo and trainer need ")


def test_open_site_file_and_secrets_are_reported(site, tmp_path):
    secret = tmp_path / "hook"
    secret.write_text("https://hooks.example.org/T/B/x\n")
    site.write_text(
        site.read_text() + f'[alerts.channels.team]\nkind = "slack"\nwebhook_file = "{secret}"\n'
        f'[alerts]\nping_url_file = "{secret}"\n'
    )
    site.chmod(0o664)
    secret.chmod(0o644)
    missing = {(line["check"], line["advice"]) for line in doctor(site) if line["severity"] == "missing"}
    assert missing >= {
        ("site file", f"chmod go-w {site}"),
        ("alerts team", f"chmod 600 {secret}"),
        ("alerts ping", f"chmod 600 {secret}"),
    }
    site.chmod(0o644)
    secret.chmod(0o600)
    assert not {line["check"] for line in doctor(site) if line["advice"].startswith("chmod")}


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
    assert (row["severity"], "the hook is broken" in row["result"]) == ("unknown", True)
