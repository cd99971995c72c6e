"""How `opsctl init` reads the command of a user, and asks for it."""

import os
import pty
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.cli.init import locate, read_command
from opsctl.settings.loader import load_train
from opsctl.slurm.parse_output import parse_shapes
from tests.support.cases import read_cases

PYTHON = "python" if shutil.which("python") else "python3"


@pytest.mark.parametrize(*read_cases(__file__, "command_is_read"))
def test_command_is_read(command, words, environment, slurm):
    first, *others = [PYTHON if word == "PYTHON" else word for word in words]
    assert read_command(command) == ([locate(first), *others], environment or {}, slurm or {})


def test_program_of_this_shell_alone_is_named_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "torchrun").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert (locate("torchrun"), locate("env"), locate("no-such")) == (f"{tmp_path}/torchrun", "env", "no-such")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert locate("torchrun") == "torchrun"


@pytest.mark.parametrize(
    ("command", "message"), [("python 'x", "--command: No closing quotation"), ("", "`command` (any trainer)")]
)
def test_unusable_command_is_refused(tmp_path, command, message):
    done = CliRunner().invoke(cli, ["init", "--dir", str(tmp_path / "new"), "--command", command])
    assert message in done.exception.message
    assert not (tmp_path / "new").exists()


def test_shapes_of_nodes_are_parsed():
    rows = ["n1@64@1@gpu:a100:4(S:0-1),nvme:1", "n2@8@1@(null)", "n3@8@1@gpu:2,gpu:v100:1"]
    text = "".join(f"{row}@\n" for row in rows)
    assert parse_shapes(text, "@") == {"n1": (64, 4), "n2": (8, 0), "n3": (8, 3)}


def test_answers_on_a_terminal_write_the_train(tmp_path):
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\nengine = "sandbox"\nsandbox = "none-such"\n')
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "opsctl", "--site", str(tmp_path / "site.toml"), "init"],
        cwd=tmp_path,
        stdin=its_end,
        stdout=its_end,
        stderr=subprocess.STDOUT,
    )
    os.write(terminal, b"torchrun train.py\n")
    assert process.wait(timeout=250) == 0, os.read(terminal, 65536)
    assert b"is not fitted to a cluster: there is no sandbox 'none-such'" in os.read(terminal, 65536)
    train = load_train(tmp_path / "train.toml")
    assert (train.command, train.setup.directory) == ((locate(PYTHON), "-u", "train.py"), str(tmp_path))
