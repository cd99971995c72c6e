"""Checkpoints of other users: a file of torch is a pickle, and a pickle runs code."""

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.guard.reproduction import FREEZE, LIST
from opsctl.trainer import manifest
from opsctl.trainer.errors import Refused
from opsctl.trainer.manifest import FileRecord, Manifest
from tests.support.hostile_users import STRANGER

torch = pytest.importorskip("torch", reason="needs the trainer extra")
load = pytest.importorskip("opsctl.trainer.checkpoint.pickles", reason="needs the trainer extra").load
pytestmark = [pytest.mark.torch, pytest.mark.root]
NAME = "layer_00-model_states.pt"


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self):
        return os.mkdir, (str(self.made),)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Exists if the stranger's code has run."""
    return tmp_path / "hacked"


def checkpoint(tmp_path: Path, content: object, owner: int = STRANGER.uid) -> Path:
    path = tmp_path / "step-0000007"
    path.mkdir()
    torch.save(content, path / NAME)
    record = FileRecord(size=(path / NAME).stat().st_size, sha256=_digest(path / NAME))
    topology = {"pipeline": 1}
    described = Manifest(
        step=7, consumed_samples=7, topology=topology, model={}, precision="fp32", files={NAME: record}
    )
    manifest.write_manifest(path, described)
    for each in (path, *path.iterdir()):
        os.chown(each, owner, -1)
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tool(*words: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "opsctl.trainer.checkpoint", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.attack("a checkpoint of another user runs code as whoever works on it")
def test_strangers_checkpoint_is_refused(tmp_path, made):
    path = checkpoint(tmp_path, {"weight": torch.zeros(4), "evil": Evil(made)})
    done = tool("reshape", path, tmp_path / "target")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "loading it would run code" in done.stderr
    assert not made.exists()


class CallOfGetattr:
    """Is written as a call of getattr, as Python 3.11 before 3.11.4 writes the member of an enum."""

    def __init__(self, of: object, name: str) -> None:
        self.arguments = (of, name)

    def __reduce__(self):
        return getattr, self.arguments


def test_enum_written_by_an_early_python_is_read(tmp_path):
    stages = pytest.importorskip("deepspeed.runtime.zero.config").ZeroStageEnum
    torch.save({"stage": CallOfGetattr(stages, "gradients")}, tmp_path / NAME)
    assert load(tmp_path / NAME) == {"stage": stages.gradients}


@pytest.mark.attack("getattr in a pickle reaches more than the members of an enum")
@pytest.mark.parametrize("name", ["__class__", "__subclasses__", "from_bytes", "mro"])
def test_getattr_reaches_members_alone(tmp_path, name):
    stages = pytest.importorskip("deepspeed.runtime.zero.config").ZeroStageEnum
    for of in (stages, torch.Tensor):
        torch.save({"evil": CallOfGetattr(of, name)}, tmp_path / NAME)
        with pytest.raises(Refused):
            load(tmp_path / NAME)


@pytest.mark.attack("export runs code of the checkpoint")
def test_layer_is_not_unpickled(tmp_path, made):
    path = checkpoint(tmp_path, {"weight": torch.zeros(4), "evil": Evil(made)})
    with pytest.raises(Refused, match="use --trust-pickle"):
        load(path / NAME)
    assert not made.exists()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path / NAME, weights_only=True)


def test_strangers_tensors_are_loaded(tmp_path):
    path = checkpoint(tmp_path, {"weight": torch.zeros(4)})
    assert torch.equal(load(path / NAME)["weight"], torch.zeros(4))


@pytest.mark.attack("a downloaded checkpoint runs its code, because it belongs to whoever downloaded it")
def test_own_pickle_needs_trust(tmp_path, made):
    path = checkpoint(tmp_path, {"weight": torch.zeros(4), "evil": Evil(made)}, os.geteuid())
    assert "use --trust-pickle if you trust" in tool("reshape", path, tmp_path / "target").stderr
    assert not made.exists()
    load(path / NAME, trust=True)
    assert made.exists()


@pytest.mark.attack("the manifest of a checkpoint names a file outside of it")
@pytest.mark.parametrize("name", ["../../secret.pt", "/etc/passwd", "a/../../b.pt", "x\0y.pt"])
def test_manifest_stays_inside(tmp_path, name):
    path = checkpoint(tmp_path, {})
    described = Manifest(
        step=7, consumed_samples=7, topology={}, model={}, precision="fp32",
        files={name: FileRecord(size=1, sha256="")},
    )  # fmt: skip
    manifest.write_manifest(path, described)
    with pytest.raises(ValueError, match="which is not inside the checkpoint"):
        manifest.read_manifest(path)


@pytest.mark.attack("modules in the working directory replace those of Python")
def test_working_directory_replaces_no_module(tmp_path, made, monkeypatch):
    for name in ("csv", "json", "argparse", "opsctl", "trainer", "torch"):
        (tmp_path / f"{name}.py").write_text(f"import os; os.mkdir({str(made)!r})\n")
    monkeypatch.chdir(tmp_path)
    path = checkpoint(tmp_path, {"weight": torch.zeros(4)})
    assert "trainer.checkpoint: " in tool("reshape", path, tmp_path / "target").stderr  # it has run, without a topology
    assert not made.exists()
    for program in (FREEZE, LIST):
        subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=250, check=False)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "opsctl", "version"], capture_output=True, timeout=250, check=False
    )
    assert not made.exists(), done
