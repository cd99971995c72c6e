"""The job that resubmits itself: directives and slots. The rest: tests/integration/slurm."""

import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from opsctl.base.errors import Unreachable
from opsctl.cron.cron_dir import SelectedDriver, read_selected, write_selected
from opsctl.cron.drivers.slurm_job import SlurmDriver
from opsctl.host.system import SystemRunner
from opsctl.settings.loader import SlurmDefaults
from tests.support.cron_context import NOON, CronSite
from tests.support.log_records import warnings


class SilentSlurm:
    """A Slurm that does not answer."""

    def __getattr__(self, name: str) -> Any:
        raise Unreachable(f"{name} did not answer")


def make_driver(cron_site: CronSite, **defaults: str) -> SlurmDriver:
    return SlurmDriver(
        cron=cron_site.cron,
        slurm=SilentSlurm(),
        runner=SystemRunner(),
        defaults=SlurmDefaults(**defaults),
        python="/opt/my python",
        site_file=Path("/x/it's.toml"),
    )  # type: ignore[arg-type]  # SilentSlurm has no methods


def test_next_slot_is_on_the_grid(cron_site: CronSite) -> None:
    cron_site.clock.time = NOON + timedelta(minutes=7)
    assert make_driver(cron_site).next_slot(NOON) == NOON.replace(minute=10, second=0)


def test_clock_behind_does_not_repeat_the_slot(cron_site: CronSite) -> None:
    slot = NOON.replace(minute=10, second=0)
    cron_site.clock.time = slot - timedelta(seconds=90)
    assert make_driver(cron_site).next_slot(slot) == NOON.replace(minute=20, second=0)


def test_clock_ahead_skips_no_slot(cron_site: CronSite) -> None:
    slot = NOON.replace(minute=10, second=0)
    cron_site.clock.time = slot + timedelta(seconds=90)
    assert make_driver(cron_site).next_slot(slot) == NOON.replace(minute=20, second=0)


def test_missing_settings_come_from_the_site(cron_site: CronSite) -> None:
    lines = make_driver(cron_site, partition="gpu", account="us", qos="long").directives()
    assert {"--partition=gpu", "--account=us", "--qos=long", "--dependency=singleton", "--no-requeue"} <= set(lines)
    cron_site.settings |= {"partition": "cpu", "extra": ("--hint=nomultithread",)}
    lines = make_driver(cron_site, partition="gpu", account="us", qos="long").directives()
    assert {"--partition=cpu", "--account=us", "--hint=nomultithread"} <= set(lines)
    assert not [option for option in lines if option.startswith("--qos")], "the QOS belongs to another partition"


def test_sites_of_a_user_have_different_marks(cron_site: CronSite, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    assert make_driver(cron_site).mark != make_driver(CronSite(tmp_path / "second")).mark


def test_script_is_valid_bash(cron_site: CronSite) -> None:
    script = make_driver(cron_site).script(NOON)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=opsctl-cron-")
    assert f"slot=${{1:-{NOON.timestamp():.0f}}}\n" in script


def test_silent_slurm_is_asked_again_until_the_limit(cron_site: CronSite, caplog: pytest.LogCaptureFixture) -> None:
    cron_site.place.create()
    write_selected(cron_site.place, SelectedDriver(driver="slurm", since=NOON, by="me"))
    assert make_driver(cron_site).follow(NOON, "7", seconds=60) is False
    assert 60 <= (cron_site.clock.now() - NOON).total_seconds() < 70
    assert warnings(caplog)[-1] == "the next tick: jobs did not answer"


@pytest.mark.parametrize("content", ["", "[]", "{}", "\0"])
def test_unreadable_driver_file_does_not_end_the_chain(cron_site: CronSite, content: str) -> None:
    cron_site.place.create()
    cron_site.place.selected.write_text(content)
    with pytest.raises(Unreachable):
        make_driver(cron_site).ensure(after=NOON, own="7")
    cron_site.place.selected.unlink()
    assert make_driver(cron_site).ensure(after=NOON, own="7") is None


def test_other_driver_ends_the_chain(cron_site: CronSite) -> None:
    cron_site.place.create()
    write_selected(cron_site.place, SelectedDriver(driver="daemon", since=NOON, by="me", host="h", pid=1, started=1))
    assert make_driver(cron_site).ensure(after=NOON, own="7") is None
    selected = read_selected(cron_site.place)
    assert selected is not None
    assert selected.driver == "daemon"
