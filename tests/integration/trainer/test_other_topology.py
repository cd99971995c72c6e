"""A resume with another topology: from a copy that rank 0 writes first, whatever interrupts it."""

import hashlib
import os
import shutil
import signal
from dataclasses import replace

import pytest

from opsctl.trainer import manifest
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.manifest import FileRecord
from opsctl.trainer.run_state import RunState
from tests.integration.trainer.conftest import tiny
from tests.integration.trainer.test_checkpoint_tools import OneRank

pytest.importorskip("deepspeed")

from opsctl.trainer.checkpoint.__main__ import main
from opsctl.trainer.checkpoint.resume import Resuming
from opsctl.trainer.checkpoint.rewrite import copy_for_any_topology, reshape

pytestmark = pytest.mark.torch


@pytest.fixture
def other(train, uninterrupted):
    """A function that makes a train of one process with the checkpoint of step 10 of two stages and data-parallel 2."""

    def make(**changes):
        run = train(**tiny(parallel={"pipeline": 1}) | changes)
        shutil.copytree(uninterrupted.checkpoints / "step-0000010", run.checkpoints / "step-0000010")
        return run

    return make


def list_names(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_other_topology_resumes_as_if_nothing_was_and_so_after_a_kill(other, uninterrupted):
    run, killed = other(), other()
    attempt = killed.start(world=1)
    attempt.wait_for(lambda: any(killed.checkpoints.glob(".reshaped-*/.making-*/zero/*")), "the copy to begin")
    os.kill(attempt.pids[0], signal.SIGKILL)
    attempt.finish()
    assert list_names(killed) == [".reshaped-step-0000010", "step-0000010"]

    logs = []
    for train in (run, killed):
        attempt = train.start(world=1)
        assert attempt.finish() == [0], attempt.log
        change = "has another topology (pipeline was 2 and is 1, data was 2 and is 1)"
        assert attempt.log.count(change) == 1
        assert "resumed from checkpoint step-0000010: 160 samples consumed (written by another topology)" in attempt.log
        assert list_names(train) == ["step-0000010", "step-0000020"]
        native = manifest.read_manifest(train.checkpoints / "step-0000010")
        assert native == manifest.read_manifest(uninterrupted.checkpoints / "step-0000010")
        logs.append(attempt.losses)
    assert logs[0] == logs[1]
    whole = uninterrupted.attempts[0].losses
    assert sorted(logs[0]) == list(range(11, 21))
    assert max(abs(float(loss) - float(whole[step])) for step, loss in logs[0].items()) < 2e-6


def test_copy_is_written_once_and_anew_if_it_is_not_sound(other, tmp_path, capsys):
    source = other().checkpoints / "step-0000010"
    saved = manifest.read_manifest(source)
    assert main(["reshape", str(source)]) == 0
    assert "step-0000010: any topology can resume it" in capsys.readouterr().out
    copied, elsewhere = source.with_name(".reshaped-step-0000010") / source.name, reshape(source, tmp_path / "other")
    assert manifest.read_manifest(elsewhere) == manifest.read_manifest(copied)  # the same bytes
    with pytest.raises(Refused, match="only a checkpoint that the trainer saved can be reshaped"):
        reshape(elsewhere, tmp_path / "more")
    written = (copied / "COMPLETE").stat().st_mtime_ns
    assert copy_for_any_topology(source, saved) == copied
    assert (copied / "COMPLETE").stat().st_mtime_ns == written
    next(copied.rglob("fp32.pt")).write_bytes(b"")
    with pytest.raises(Refused, match=r"not enough space in .*: needs about 3\d{11}\.\d MB"):
        copy_for_any_topology(source, replace(saved, files={"x": FileRecord(size=10**17, sha256="")}))
    assert copy_for_any_topology(source, saved) == copied
    assert manifest.verify(copied) == []
    again = replace(saved, save_s=saved.save_s + 1)  # saved once more, as after a rollback
    assert manifest.read_manifest(copy_for_any_topology(source, again)).save_s == again.save_s


def test_ranks_learn_why_there_is_no_copy(other):
    """All of them refuse, and none waits for rank 0."""
    run = other()
    source = run.checkpoints / "step-0000010"
    saved = manifest.read_manifest(source)
    (name, *_) = (name for name in saved.files if name.endswith("optim_states.pt"))
    (source / name).write_bytes(b"no pickle")
    spoilt = FileRecord(size=9, sha256=hashlib.sha256(b"no pickle").hexdigest())
    manifest.write_manifest(source, replace(saved, files={**saved.files, name: spoilt}))
    config, topology = TrainerConfig.model_validate(run.config), {"pipeline": 1}
    resuming = Resuming(directory=run.checkpoints, config=config, topology=topology, control=OneRank())
    message = r"step-0000010 cannot be copied for another topology: DeepSpeed could not convert .* \(exit 1\):"
    with pytest.raises(Refused, match=message):
        resuming.find(RunState())
    assert list_names(run) == [".reshaped-step-0000010", "step-0000010"]
    assert [*(run.checkpoints / ".reshaped-step-0000010").iterdir()] == []
