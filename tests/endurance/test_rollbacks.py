"""Rollbacks that take long, on a real Slurm: by the embedded trainer, and of a trainer that does not stop if asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.base.errors import InputError, WaitTimedOut
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.launch.rollback_state import RollbackPhase, read_newest
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from opsctl.state.run_dir import RunDir
from opsctl.trainer import manifest
from tests.integration.slurm.test_train_end_to_end import TRAIN, Site
from tests.support.saved_checkpoints import save
from tests.support.trains import trains_on, until

pytestmark = pytest.mark.timeout(1200)
SAMPLES = 24
"""Samples of a step."""


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    tmp_path.chmod(0o755)
    places = Places(state=tmp_path / "sandbox", cache=tmp_path / "cache")
    spec = SandboxSpec(name="rollback", nodes=2, fast=True)
    sandbox = Sandbox.up(spec, places=places, clock=SystemClock(), runner=SystemRunner())
    yield sandbox
    sandbox.down(grace=0.2)


@pytest.fixture
def site(tmp_path: Path, sandbox: Sandbox) -> Site:
    pytest.importorskip("deepspeed", reason="needs the trainer extra")
    return Site(tmp_path, sandbox)


def read_steps(run: RunDir) -> list[int]:
    return [checkpoint.step for checkpoint in manifest.list_checkpoints(run.checkpoints)]


def read_saved(run: RunDir, step: int) -> manifest.Manifest:
    return manifest.read_manifest(run.checkpoints / manifest.directory_name(step))


@pytest.mark.torch
def test_embedded_train_goes_back_and_forth(site: Site) -> None:
    text = TRAIN.format(name="back", corpus=site.place / "corpus").replace("steps = 30", "steps = 4000")
    config = site.place / "back.toml"
    config.write_text(text)
    site.opsctl("launch", str(config))
    run = RunDir(site.place / "trains" / "back")
    until(lambda: 12 in read_steps(run), seconds=400)
    first, trainer = read_saved(run, 12), run.trainer_config.read_text()

    skipped = f"{8 * SAMPLES}-{10 * SAMPLES - 1}"
    words = ("rollback", "back", "--to", "8", "--skip-samples", skipped, "--lr-scale", "0.5")
    planned = json.loads(site.opsctl(*words, "--dry-run", "--json"))
    assert (planned["step"], planned["evidence"]) == (8, "the hash of every file is right")
    assert json.loads(site.opsctl(*words, "--json"))["set_aside"][-1].endswith("step-0000012")
    until(lambda: 12 in read_steps(run), seconds=400)
    second = read_saved(run, 12)
    assert second.consumed_samples == first.consumed_samples + 2 * SAMPLES
    assert second.rate == pytest.approx(0.5 * first.rate, rel=1e-2)  # two steps further on the cosine
    assert "resumed from checkpoint step-0000008" in run.main_log.read_text()

    site.opsctl("rollback", "back", "--undo")
    assert read_saved(run, 12) == first
    assert run.trainer_config.read_text() == trainer
    (run.checkpoints / ".undone-0001" / "step-0000012").stat()
    newest = max(read_steps(run))
    until(lambda: f"resumed from checkpoint {manifest.directory_name(newest)}" in run.main_log.read_text(), seconds=200)
    site.opsctl("cancel", "back")


@pytest.mark.parametrize("is_undone", [False, True])
def test_rollback_that_times_out_is_finished_or_undone(sandbox: Sandbox, *, is_undone: bool) -> None:
    with trains_on(sandbox) as trains:
        script = trains.place / "deaf.sh"
        script.write_text("trap '' TERM\ntouch \"$1/up\"\nwhile :; do sleep 0.1; done\n")
        command = ("bash", str(script), str(trains.place))
        guard = "stop_after_seconds = 2\nstop_grace_seconds = 5"
        trains.opsctl("launch", trains.toml(command=command, more=guard, extra=()))
        until((trains.place / "up").exists)
        for step in (10, 20):
            save(trains.run().checkpoints, step)
        with pytest.raises(WaitTimedOut, match="has not stopped within 1 s"):
            trains.opsctl("rollback", "t", "--to", "10", "--timeout", "1s")
        assert read_steps(trains.run()) == [10, 20], "a running task may still save"
        assert all(job.is_held for job in trains.rows() if job.state.is_waiting)
        if is_undone:
            trains.opsctl("rollback", "t", "--undo")
            assert read_steps(trains.run()) == [10, 20]
            assert not list(trains.run().checkpoints.glob(".*"))
            return
        with pytest.raises(InputError, match="a rollback to step 10 was interrupted"):
            trains.opsctl("rollback", "t", "--to", "20")
        assert "goes on with the interrupted rollback" in trains.opsctl("rollback", "t")
        assert read_steps(trains.run()) == [10]
        assert read_newest(trains.run()).phase is RollbackPhase.DONE
        assert not (trains.run().switches / "pause").exists()
