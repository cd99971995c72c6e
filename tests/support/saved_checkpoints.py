"""A train with small checkpoints, and `opsctl checkpoint` called in this process."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.base.errors import OpsctlError
from opsctl.cli import cli
from opsctl.trainer import manifest
from opsctl.trainer.manifest import FileRecord, Manifest


def opsctl(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["checkpoint", *map(str, words)], standalone_mode=False, prog_name="opsctl")
    if done.exception:
        raise done.exception
    assert (done.return_value or 0) == code
    return done.stdout


@dataclass(frozen=True, slots=True)
class Refusal:
    out: str
    error: OpsctlError


def expect_refusal(*words: object) -> Refusal:
    """Run a command that must end with exit code 1, and return its output and its error."""
    done = CliRunner().invoke(cli, ["checkpoint", *map(str, words)], standalone_mode=False, prog_name="opsctl")
    assert isinstance(done.exception, OpsctlError)
    assert done.exception.exit_code == 1
    return Refusal(done.stdout, done.exception)


def make_unreadable(checkpoint: Path, name: str) -> None:
    """Replace a file by one that root cannot read either: a link to a name longer than any file system accepts."""
    (checkpoint / name).unlink()
    (checkpoint / name).symlink_to("x" * 300)


def save(directory: Path, step: int, *, size: int = 1000) -> Path:
    path = directory / manifest.directory_name(step)
    (path / "zero" / "0.weight").mkdir(parents=True)
    files = {}
    for name in ("layer_00.pt", "rank 0; $(x).pt", "zero/0.weight/fp32.pt"):
        content = f"{step} {name} ".encode() * size
        (path / name).write_bytes(content)
        files[name] = FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    content_list = Manifest(
        step=step,
        consumed_samples=16 * step,
        topology={"pipeline": 2, "data": 2},
        model={},
        precision="bf16",
        files=files,
    )
    manifest.write_manifest(path, content_list)
    return path


def make_train(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the train `tiny` with checkpoints of the steps 10 to 40; return its run directory."""
    monkeypatch.setenv("OPSCTL_ROOT", str(directory / "trains"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory / "config"))
    path = directory / "trains" / "tiny"
    (path / "checkpoints").mkdir(parents=True)
    (path / "train.toml").write_text('name = "tiny"\ncommand = ["x"]\n[slurm]\nnodes = 1\ntime_limit = "9"\n')
    for step in (10, 20, 30, 40):
        save(path / "checkpoints", step)
    return path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def steps(directory: Path) -> list[int]:
    return [checkpoint.step for checkpoint in manifest.list_checkpoints(directory)]
