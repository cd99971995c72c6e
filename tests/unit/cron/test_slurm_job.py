"""The job that submits itself: what it asks Slurm for, and when it comes next. The rest is tested on a real Slurm."""

from __future__ import annotations

import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from opsctl.cron.drivers.selected_driver import SelectedDriver, read_selected, write_selected
from opsctl.cron.drivers.slurm_job import SlurmDriver
from opsctl.errors import Unreachable
from opsctl.host.system import SystemRunner
from opsctl.settings.loader import SlurmDefaults
from tests.support.cron_context import NOON, CronWorld
from tests.support.log_records import warnings


class Nobody:
    """A Slurm that does not answer."""

    def __getattr__(self, name: str) -> Any:
        raise Unreachable(f"{name} did not answer")


def driver_of(world: CronWorld, **defaults: str) -> SlurmDriver:
    return SlurmDriver(
        cron=world.cron,
        scheduler=Nobody(),
        runner=SystemRunner(),
        defaults=SlurmDefaults(**defaults),
        python="/opt/my python",
        site_file=Path("/x/it's.toml"),
    )  # type: ignore[arg-type]  # it answers nothing


def test_ticks_come_on_a_grid_and_not_an_hour_after_the_last_one(world: CronWorld) -> None:
    world.clock.time = NOON + timedelta(minutes=7)
    assert driver_of(world).next_slot(NOON) == NOON.replace(minute=10, second=0)


def test_a_node_whose_clock_is_behind_is_not_given_its_own_slot_again(world: CronWorld) -> None:
    slot = NOON.replace(minute=10, second=0)
    world.clock.time = slot - timedelta(seconds=90)
    assert driver_of(world).next_slot(slot) == NOON.replace(minute=20, second=0)


def test_a_node_whose_clock_is_ahead_leaves_no_slot_out(world: CronWorld) -> None:
    slot = NOON.replace(minute=10, second=0)
    world.clock.time = slot + timedelta(seconds=90)
    assert driver_of(world).next_slot(slot) == NOON.replace(minute=20, second=0)


def test_what_cron_does_not_say_is_taken_from_the_site(world: CronWorld) -> None:
    lines = driver_of(world, partition="gpu", account="us", qos="long").directives()
    assert {"--partition=gpu", "--account=us", "--qos=long", "--dependency=singleton", "--no-requeue"} <= set(lines)
    world.settings |= {"partition": "cpu", "extra": ("--hint=nomultithread",)}
    lines = driver_of(world, partition="gpu", account="us", qos="long").directives()
    assert {"--partition=cpu", "--account=us", "--hint=nomultithread"} <= set(lines)
    assert not [option for option in lines if option.startswith("--qos")], "one of another partition"


def test_two_sites_of_one_user_do_not_wait_for_each_other(world: CronWorld, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    assert driver_of(world).mark != driver_of(CronWorld(tmp_path / "second")).mark


def test_the_script_is_good_shell(world: CronWorld) -> None:
    script = driver_of(world).script(NOON)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=opsctl-cron-")
    assert f"slot=${{1:-{NOON.timestamp():.0f}}}\n" in script


def test_silent_slurm_is_asked_for_a_bounded_time(world: CronWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.place.create()
    write_selected(world.place, SelectedDriver(driver="slurm", since=NOON, by="me"))
    assert driver_of(world).follow(NOON, "7", seconds=60) is False
    assert 60 <= (world.clock.now() - NOON).total_seconds() < 70
    assert warnings(caplog)[-1] == "the next tick: jobs did not answer"


@pytest.mark.parametrize("rubbish", ["", "[]", "{}", "\0"])
def test_a_file_that_cannot_be_read_does_not_end_the_chain(world: CronWorld, rubbish: str) -> None:
    world.place.create()
    world.place.selected.write_text(rubbish)
    with pytest.raises(Unreachable):
        driver_of(world).ensure(after=NOON, own="7")
    world.place.selected.unlink()
    assert driver_of(world).ensure(after=NOON, own="7") is None


def test_another_driver_that_was_started_ends_the_chain(world: CronWorld) -> None:
    world.place.create()
    write_selected(world.place, SelectedDriver(driver="daemon", since=NOON, by="me", host="h", pid=1, started=1))
    assert driver_of(world).ensure(after=NOON, own="7") is None
    wanted = read_selected(world.place)
    assert wanted is not None
    assert wanted.driver == "daemon"
