"""What `opsctl doctor` says of cron. Of Slurm and of alerts: tests/sandbox and tests/alerts."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.cron.drivers.wanted import Wanted, write_wanted
from opsctl.cron.place import CronDir
from opsctl.sitedir import SiteDir


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(f'engine = "sandbox"\nsandbox = "none-such"\nroot = "{tmp_path}/trains"\ntrust_parents = true\n')
    return path


def cron_line(site: Path) -> dict:
    said = CliRunner().invoke(cli, ["--site", str(site), "doctor", "--json"]).output
    return next(line for line in json.loads(said) if line["what"] == "cron")


def ticked(site: Path, *, ago: float, wanted: bool) -> None:
    place = CronDir(SiteDir.of(site.parent / "trains"))
    place.create()
    then = time.time() - ago
    place.touch(datetime.fromtimestamp(then, UTC))
    if wanted:
        since = datetime.fromtimestamp(then - 10, UTC)
        write_wanted(place, Wanted(driver="daemon", since=since, by="me", host="login1", pid=1, started=1))
        os.utime(place.wanted, (then, then))


def test_where_nobody_ticks_it_says_how_to_begin(site):
    line = cron_line(site)
    assert (line["level"], line["do"]) == ("optional", "opsctl cron start")
    assert line["found"].startswith("nobody ticks")


def test_a_crontab_of_the_system_is_seen_by_its_ticks(site):
    ticked(site, ago=100, wanted=False)
    line = cron_line(site)
    assert line["level"] == "ok"
    assert line["found"].startswith("ticks from outside; last tick 20")


def test_ticks_that_do_not_come_are_missing(site):
    ticked(site, ago=7200, wanted=True)
    line = cron_line(site)
    assert (line["level"], line["do"]) == ("missing", "opsctl cron start")
    assert line["found"].endswith("too long ago")


def test_a_file_that_makes_no_sense_does_not_stop_it(site):
    ticked(site, ago=7200, wanted=True)
    wanted = CronDir(SiteDir.of(site.parent / "trains")).wanted
    wanted.write_text("{")
    os.utime(wanted, (0, 0))
    assert cron_line(site)["level"] == "missing"
