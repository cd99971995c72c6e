"""A full disk costs one save and nothing else."""

import contextlib
import re
import resource
import subprocess
import sys
import threading

import pytest

from opsctl.trainer import manifest
from opsctl.trainer.contract import TrainerStop
from tests.integration.trainer.conftest import ROOT, tiny
from tests.support.mounts import mounting

pytestmark = pytest.mark.torch
pytest.importorskip("deepspeed")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    with mounting(place, "size=64m"):
        yield place


@contextlib.contextmanager
def fill_during_saves(disk):
    """Fill the disk as soon as a save writes to it."""
    done = threading.Event()

    def fill() -> None:
        with (disk / "filler").open("wb", buffering=0) as file:
            while not done.is_set():
                while any(disk.glob(".saving-*")):
                    with contextlib.suppress(OSError):
                        file.write(bytes(1 << 22))

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        yield
    finally:
        done.set()
        filler.join()


@pytest.mark.root
def test_full_disk_keeps_the_old_checkpoint_and_the_training(train, small_disk):
    model = {"layers": 2, "hidden": 256, "heads": 2, "sequence": 32}  # checkpoints of 24 MB
    run = train(**tiny(steps=100_000, precision="bf16", model=model, checkpoint={"every": 0}))
    run.checkpoints.symlink_to(small_disk)
    attempt = run.start(world=2)
    attempt.wait_for_step(1)
    save = run.arm("save")
    attempt.wait_for(lambda: not save.exists(), "the first save")
    first = manifest.find_newest_complete(run.checkpoints)

    with fill_during_saves(small_disk):
        run.arm("save")
        attempt.wait_for(lambda: "No space left on device" in attempt.log, "the save to fail")
    attempt.wait_for_step(max(attempt.losses) + 3)
    assert manifest.list_checkpoints(run.checkpoints) == [first]
    assert manifest.verify(first.path) == []
    assert {p.name for p in small_disk.iterdir()} == {first.path.name, "filler"}
    attempt.wait_for(lambda: "No space left on device" in attempt.heartbeat("train").note, "the note in the heartbeat")
    assert attempt.log.count("was not saved") == 1  # no retry before the next request

    with (small_disk / "filler").open("ab", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(1 << 20))
    run.arm("save")
    attempt.wait_for(lambda: "not enough space in " in attempt.log, "the save to be refused")
    assert re.search(r"needs about 2\d\.\d MB, and 0\.\d MB are free", attempt.log)

    (small_disk / "filler").unlink()
    run.arm("stop")
    assert attempt.finish() == [0, 0]
    stop = attempt.stop_reason
    assert stop.reason is TrainerStop.STOP_REQUEST
    assert stop.checkpoint_step == stop.step
    assert ["was not saved" in note for note in stop.notes] == [True, True]
    assert manifest.verify(run.checkpoints / manifest.directory_name(stop.step)) == []


def test_failed_write_of_one_rank_makes_no_checkpoint(train):
    """Only rank 1 fails, as with a quota or one bad mount; rank 0, which commits the checkpoint, can write."""
    run = train(**tiny(steps=100_000, checkpoint={"every": 0}))
    attempt = run.start(world=2)
    attempt.wait_for_step(1)
    no_limit = resource.prlimit(attempt.pids[1], resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
    run.arm("save")
    attempt.wait_for(lambda: "was not saved" in attempt.log, "the save to fail")
    assert "rank 1: zero_pp_rank_0_mp_rank_01_optim_states.pt: File too large" in attempt.log
    assert list(run.checkpoints.iterdir()) == []

    resource.prlimit(attempt.pids[1], resource.RLIMIT_FSIZE, no_limit)
    save = run.arm("save")  # a new request is tried again
    attempt.wait_for(lambda: not save.exists(), "the second save")
    assert manifest.verify(manifest.find_newest_complete(run.checkpoints).path) == []


SAVE_TOO_MUCH = """
import sys, torch
from opsctl.trainer.checkpoint.rank_files import RecordingEngine
recorder = RecordingEngine()
recorder.save(state_dict={"small": torch.zeros(10)}, path=sys.argv[1] + "/small.pt")
recorder.save(state_dict={"big": torch.zeros(10**6)}, path=sys.argv[1] + "/big.pt")
print(sorted(recorder.files), recorder.errors)
"""


def test_failed_write_is_recorded_and_not_raised(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SAVE_TOO_MUCH, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.stdout.splitlines()[-1] == "['small.pt'] ['big.pt: File too large']"
    assert (tmp_path / "small.pt").exists()
    assert not (tmp_path / "big.pt").exists()
