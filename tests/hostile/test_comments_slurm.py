"""A copied comment on a real Slurm: another user's held array with the nonce of a train."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator

import pytest

from opsctl.sandbox.cluster import Sandbox
from tests.integration.slurm.conftest import _open_to_other_users, _programs, places, slurm
from tests.support.hostile_users import STRANGER
from tests.support.trains import Trains, trains_on, until

__all__ = ["_open_to_other_users", "_programs", "places", "slurm"]
pytestmark = pytest.mark.root


@pytest.fixture
def trains(slurm: Sandbox) -> Iterator[Trains]:
    with trains_on(slurm) as trains:
        yield trains


@pytest.fixture
def stranger_job(slurm: Sandbox, trains: Trains) -> Iterator[str]:
    """The held array of the stranger, with the comment of train `t`."""
    trains.opsctl("launch", trains.toml())
    comment = trains.rows()[0].comment
    home = tempfile.mkdtemp(prefix="opsctl-stranger-")
    shutil.chown(home, STRANGER.name)
    argv = ("sbatch", "--parsable", "--hold", "--array=1-9%1", f"--comment={comment}", "--job-name=t", "--wrap=true")
    done = subprocess.run(
        argv, user=STRANGER.uid, group=STRANGER.uid, extra_groups=[], cwd=home, capture_output=True, text=True,
        timeout=250, check=True, env={**slurm.env(), "PATH": "/usr/bin:/bin", "HOME": home},
    )  # fmt: skip
    job = done.stdout.strip()
    yield job
    trains.app.slurm.cancel(job)
    until(lambda: not [row for row in trains.app.slurm.jobs() if row.array == job and not row.state.is_final])
    shutil.rmtree(home)


@pytest.mark.attack("a stranger's array with our comment blocks hold, release and cancel on a real Slurm")
def test_copied_comment_blocks_nothing(trains: Trains, stranger_job: str) -> None:
    own = {row.array for row in trains.app.slurm.jobs() if row.name == "t" and row.array != stranger_job}
    assert f"held array {own.pop()}" in trains.opsctl("hold", "t")
    assert stranger_job not in trains.opsctl("release", "t")
    assert f"of {STRANGER.name} carries a copy of this train's comment" in trains.opsctl("status", "t")
    assert stranger_job not in trains.opsctl("cancel", "t")
    until(lambda: {row.array for row in trains.rows()} == {stranger_job})
