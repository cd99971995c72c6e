"""Launches killed before they learn the result of sbatch: a second launch neither doubles nor loses the train."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from opsctl.app import App
from opsctl.base.errors import SlurmError, Unreachable
from opsctl.base.model import LaunchPlan
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.slurm.commands import Slurm
from opsctl.state.events import ArrayLost, Created, Event, Submitted, Submitting
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from tests.support.slurms import save_controller_state
from tests.support.trains import Trains, trains_on, until


class CutApp(App):
    """The real App, interrupted as by Ctrl-C after a number of effects of a launch."""

    def cut_after(self, effects: int) -> "CutApp":
        object.__setattr__(self, "left", [effects])
        return self

    def count(self) -> None:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise KeyboardInterrupt

    def journal(self, run: RunDir) -> Journal:
        count = self.count

        class CutJournal(Journal):
            def append(self, event: Event) -> Event:
                count()
                return super().append(event)

        return CutJournal(run, self.clock)

    @property
    def slurm(self) -> Slurm:
        count = self.count

        class CutSlurm(Slurm):
            def submit(self, plan: LaunchPlan, *, script: str, output: str) -> str:
                count()
                return super().submit(plan, script=script, output=output)

        return CutSlurm(self.engine_runner)


EFFECTS = ("created", "submitting", "sbatch", "submitted")


@pytest.mark.parametrize("effects", range(len(EFFECTS)), ids=[f"before-{effect}" for effect in EFFECTS])
def test_launch_cut_off_before_a_step_can_be_repeated(trains: Trains, effects: int) -> None:
    path, real = trains.toml(), trains.app
    cut = CutApp(site=real.site, site_path=real.site_path, clock=real.clock, runner=real.runner).cut_after(effects)
    with pytest.raises((KeyboardInterrupt, click.Abort)):
        trains.opsctl("launch", path, app=cut)
    was_there = bool(trains.arrays())
    assert was_there == (effects == 3)
    result = json.loads(trains.opsctl("launch", path, "--json"))
    assert trains.arrays() == {result["array"]}
    assert result["already"] == was_there
    assert result["tasks"] == 3
    assert trains.kinds().count(Submitted) == 1


def replace_sbatch(trains: Trains, after: str) -> dict[str, str]:
    """Return an environment whose `sbatch` submits and then runs the shell line `after`."""
    program = trains.place / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\n"{_which("sbatch")}" "$@"\n{after}\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def _which(name: str) -> str:
    argv = ("bash", "-c", f"command -v {name}")
    return subprocess.run(argv, capture_output=True, text=True, timeout=250, check=True).stdout.strip()


def test_launch_killed_during_sbatch_is_found_by_the_next(trains: Trains) -> None:
    path = trains.toml()
    env = {**os.environ, **replace_sbatch(trains, "kill -KILL $PPID")}
    argv = (sys.executable, "-m", "opsctl", "--site", str(trains.site), "launch", str(path))
    done = subprocess.run(argv, env=env, capture_output=True, timeout=250, check=False)
    assert done.returncode == -signal.SIGKILL
    assert trains.kinds() == [Created, Submitting]
    (array,) = trains.arrays()
    text = trains.opsctl("launch", path)
    assert text.startswith(f"t: was already submitted as array {array}, 3 tasks")
    assert trains.arrays() == {array}


class HurriedRunner(SystemRunner):
    """A runner that waits at most six seconds for sbatch."""

    def run(self, argv, *, timeout, **more):  # type: ignore[no-untyped-def]  # the signature of the port
        return super().run(argv, timeout=6 if argv[0] == "sbatch" else timeout, **more)


class HurriedApp(App):
    @property
    def engine_runner(self) -> HurriedRunner:
        return HurriedRunner(env=self.engine_env)


def test_late_sbatch_is_found_by_the_next_launch(trains: Trains, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = trains.toml(), trains.app
    hurried = HurriedApp(site=real.site, site_path=real.site_path, clock=real.clock, runner=real.runner)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", replace_sbatch(trains, "sleep 600")["PATH"])
        with pytest.raises(Unreachable) as caught:
            trains.opsctl("launch", path, app=hurried)
    assert caught.value.exit_code == 75
    assert caught.value.message == "sbatch did not answer within 6 s: it is unknown whether the train was submitted"
    assert json.loads(trains.opsctl("launch", path, "--json"))["already"]
    assert len(trains.arrays()) == 1


def journal_submitting(trains: Trains) -> str:
    """Journal the begin of a submission without its result, and return the nonce."""
    nonce = "abc"
    Journal(trains.run(), SystemClock()).append(Submitting(nonce=nonce, tasks=3, after=""))
    return nonce


def test_lost_submission_is_repeated_with_its_nonce(trains: Trains) -> None:
    path = trains.toml()
    trains.run().create()
    nonce = journal_submitting(trains)
    trains.opsctl("launch", path)
    assert [job.comment for job in trains.rows()] == [f"opsctl:t:{nonce}"]


def test_duplicate_late_submission_is_cancelled(trains: Trains) -> None:
    path = trains.toml()
    trains.opsctl("launch", path)
    (first,) = trains.rows()
    late = (
        "sbatch",
        "--parsable",
        "--hold",
        "--job-name=t",
        f"--comment={first.comment}",
        "--array=1-3%1",
        "--mem=10",
        "--time=5",
        "--wrap=true",
    )
    subprocess.run(late, check=True, capture_output=True, timeout=250, cwd=trains.place)
    assert len(trains.arrays()) == 2
    trains.refusal("launch", path)
    assert trains.arrays() == {first.array}


def test_array_with_changed_comment_is_not_lost(trains: Trains) -> None:
    path = trains.toml()
    trains.opsctl("launch", path)
    (array,) = trains.arrays()
    argv = ("scontrol", "update", f"JobId={array}", "Comment=x")
    subprocess.run(argv, check=True, capture_output=True, timeout=250)
    error = trains.refusal("launch", path)
    assert isinstance(error, SlurmError)
    assert error.message == f"array {array} has this train's name and id, but its comment was changed"
    subprocess.run(("scancel", array), check=True, timeout=250)
    until(lambda: not trains.rows())


def test_reused_job_id_is_not_taken_for_the_train(fresh_slurm: Callable[..., Sandbox], tmp_path: Path) -> None:
    sandbox = fresh_slurm(nodes=1)
    with trains_on(sandbox) as trains:
        path = trains.toml()
        restore = save_controller_state(sandbox)
        lost = json.loads(trains.opsctl("launch", path, "--json"))["array"]
        restore()
        theirs = ("sbatch", "--parsable", "--hold", "--job-name=theirs", "--wrap=true")
        done = subprocess.run(theirs, check=True, capture_output=True, text=True, timeout=250, cwd=tmp_path)
        assert done.stdout.strip() == lost, "the controller remembered the job: nothing is proved"
        assert "is not this train's any more" in trains.opsctl("status", "t")
        result = json.loads(trains.opsctl("launch", path, "--json"))
        assert result["notes"] == [f"array {lost} of this train is lost: Slurm reused its id for another job"]
        assert result["array"] != lost
        assert [job.array for job in trains.rows("theirs")] == [lost]
        assert ArrayLost in trains.kinds()
