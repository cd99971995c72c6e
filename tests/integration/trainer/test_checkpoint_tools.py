"""`python -m opsctl.trainer.checkpoint` on checkpoints of real ranks."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from opsctl.checkpoints import catalog
from opsctl.trainer import manifest
from opsctl.trainer.config import TrainerConfig
from opsctl.trainer.errors import Refused
from opsctl.trainer.manifest import Checkpoint
from opsctl.trainer.rank_process import RankProcess
from opsctl.trainer.run_state import RunState
from tests.integration.trainer.conftest import ROOT, tiny
from tests.support.cases import read_cases

pytest.importorskip("deepspeed")

from opsctl.trainer.checkpoint.__main__ import main
from opsctl.trainer.checkpoint.resume import Resuming

pytestmark = pytest.mark.torch


@pytest.fixture
def copy(uninterrupted, tmp_path):
    """A copy of a checkpoint of two stages with two data-parallel ranks, which the test may change."""
    return shutil.copytree(uninterrupted.checkpoints / "step-0000020", tmp_path / "step-0000020")


def change_version(checkpoint):
    text = (checkpoint / "manifest.json").read_text().replace('"format": 1', '"format": 7')
    (checkpoint / "manifest.json").write_text(text)
    (checkpoint / "COMPLETE").write_text(hashlib.sha256(text.encode()).hexdigest() + "\n")


def test_manifest_of_another_version_is_left_in_place(copy):
    change_version(copy)
    with pytest.raises(OSError, match="this is not a manifest of format 1"):
        manifest.verify(copy)
    assert catalog.find_superfluous(copy.parent, keep_last=2)[0] == []
    resuming = Resuming(directory=copy.parent, config=None, topology={}, control=OneRank())
    with pytest.raises(Refused, match=r"cannot be verified: .* not a manifest of format 1"):
        resuming.find(RunState())
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_read_error_of_another_rank_stops_all_ranks(copy):
    """The error counts as one of the file system, not of the config."""

    class TwoRanks(OneRank):
        def gather(self, value):
            return [value, ([], OSError(5, "Input/output error", "x.pt"))]

    resuming = Resuming(directory=copy.parent, config=None, topology={}, control=TwoRanks())
    with pytest.raises(OSError, match=r"step-0000020 cannot be verified: \[Errno 5\] Input/output error: 'x.pt'"):
        resuming.find(RunState())
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_damaged_checkpoint_that_cannot_be_moved_is_refused(copy):
    (copy / "rank-00001.pt").write_bytes(b"")
    for number in range(1000):
        copy.with_name("damaged-step-0000020" + (f".{number}" if number else "")).mkdir()
    resuming = Resuming(directory=copy.parent, config=None, topology={}, control=OneRank())
    with pytest.raises(Refused, match=r"is damaged and cannot be set aside: .* a thousand times"):
        resuming.find(RunState())


@pytest.mark.parametrize(*read_cases(__file__, "checkpoint_of_another_run_is_refused"))
def test_checkpoint_of_another_run_is_refused(tmp_path, kind, changes, message):
    def make_config(**tables):
        table = tiny(**tables)
        table["model"] = tiny()["model"] | tables.get("model", {})
        return TrainerConfig.model_validate(table)

    other = manifest.Manifest(
        step=1,
        consumed_samples=16,
        topology={"pipeline": 2},
        model=make_config().model.model_dump(),
        precision="fp32",
        kind=kind,
    )
    here = make_config(**changes)
    topology = {"pipeline": here.parallel.pipeline}
    resuming = Resuming(directory=tmp_path, config=here, topology=topology, control=OneRank())
    with pytest.raises(Refused, match=message) if message else contextlib.nullcontext():
        resuming._refuse_other(Checkpoint(1, tmp_path), other)


@pytest.mark.parametrize(("family", "changes"), [("bloom", {}), ("llama", {"rope_theta": 5e5})])
def test_length_of_samples_may_change_if_accepted(tmp_path, family, changes):
    """No weight depends on it, except where positions are learnt."""

    def make_config(model, **tables):
        return TrainerConfig.model_validate(tiny(**tables) | {"model": {"family": family, "layers": 2} | model})

    other = manifest.Manifest(
        step=1, consumed_samples=16, topology={}, model=make_config({}).model.model_dump(), precision="fp32"
    )
    here = make_config(changes | {"sequence": 256})
    resuming = Resuming(directory=tmp_path, config=here, topology={}, control=OneRank())
    with pytest.raises(
        Refused, match=r"sequence is 128 there and 256 here.* \(no weight depends .* accept = true takes it"
    ):
        resuming._refuse_other(Checkpoint(1, tmp_path), other)
    accepting = replace(resuming, config=here.model_copy(update={"accept": True}))
    accepting._refuse_other(Checkpoint(1, tmp_path), other)


class OneRank:
    """A group of one rank."""

    process = RankProcess(rank=0, world_size=1, local_rank=0, node="here")

    def gather(self, value):
        return [value]

    def from_first(self, value):
        return value


@pytest.mark.parametrize(*read_cases(__file__, "invalid_arguments_are_refused"))
def test_invalid_arguments_are_refused(tmp_path, capsys, words, message):
    try:
        code = main([word.replace("P", str(tmp_path)) for word in words])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert message.replace("P", str(tmp_path)) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_opsctl_export_gives_the_same_logits(uninterrupted, tmp_path):
    """The command runs the Python of the train and passes on its output and its exit code."""
    pytest.importorskip("transformers")
    run = tmp_path / "tiny"
    run.mkdir()
    slurm = '[slurm]\nnodes = 1\ntime_limit = "9"\n'
    (run / "train.toml").write_text(f'name = "tiny"\npython = "{sys.executable}"\n{slurm}[trainer]\nsteps = 20\n')
    (run / "checkpoints").symlink_to(uninterrupted.checkpoints)

    def run_command(*words):
        argv = [sys.executable, "-m", "opsctl", "checkpoint", words[0], str(run), *map(str, words[1:])]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)

    done = run_command("export", tmp_path / "gpt2", "--compare", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["difference"] < 1e-5
    assert json.loads((tmp_path / "gpt2" / "config.json").read_text())["model_type"] == "gpt2"
    assert run_command("export", tmp_path / "gpt2").returncode == 2
    assert run_command("export", tmp_path / "half", "--bf16").returncode == 0
    sizes = [sum(path.stat().st_size for path in (tmp_path / name).glob("*.safetensors")) for name in ("gpt2", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
