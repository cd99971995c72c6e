"""slurmdbd and MariaDB, where they are installed."""

from __future__ import annotations

import os

import pytest
from slurms import Up, slurm_says, wait_until

from opsctl.errors import MissingProgram
from opsctl.sandbox.programs import find_programs
from opsctl.sandbox.record import Places


@pytest.fixture(autouse=True)
def _accounting(_programs: None) -> None:
    try:
        find_programs(os.environ.get("PATH", ""), accounting=True)
    except MissingProgram as missing:
        pytest.skip(f"accounting is {missing.message}")


def test_sacct_tells_how_a_job_ended_and_the_next_sandbox_starts_from_a_copy(fresh_slurm: Up, places: Places) -> None:
    first = fresh_slurm(accounting=True)
    job = slurm_says(first, "sbatch", "--parsable", "--account=train", "--output=/dev/null", "--wrap=exit 3").strip()
    told = ("sacct", "-nXP", "-j", job, "-o", "Account,State,ExitCode")
    wait_until(lambda: "FAILED" in slurm_says(first, *told))
    assert slurm_says(first, *told) == "train|FAILED|3:0\n"
    first.down()
    templates = list(places.cache.iterdir())
    second = fresh_slurm(accounting=True)
    assert list(places.cache.iterdir()) == templates
    assert slurm_says(second, "sacct", "-nX") == ""
    assert "train" in slurm_says(second, "sacctmgr", "-nP", "show", "account", "format=account")
