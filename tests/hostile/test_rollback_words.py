"""Names of checkpoints in the words that a rollback adds to the command, through the shell of the body."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from opsctl.settings.rollback import RollbackSettings

NAMES = (
    "step-1;touch x", "step-1$(touch x)", "step-1`touch x`", "step-1'\"$(touch x)", "step-1\n touch x", "a b", "*",
    "{step}", "{checkpoint}", "${IFS}touch", "step-1)touch x(", "-o=x", "\\", "!!",
)  # fmt: skip


@pytest.mark.attack("the name of a checkpoint is shell text")
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_name_stays_one_word(tmp_path: Path, name: str) -> None:
    settings = RollbackSettings(step_argument="--at '{checkpoint}' {step}", step=7, checkpoint=f"/c/{name}")
    text = 'eval "rollback_words=(${TRAIN_ROLLBACK_ARGUMENTS:-})"; printf "%s\\0" "${rollback_words[@]}"'
    environment = {"TRAIN_ROLLBACK_ARGUMENTS": shlex.join(settings.first_words())}
    done = subprocess.run(["/bin/bash", "-c", text], env=environment, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["--at", f"/c/{name}", "7"]
    assert not list(tmp_path.iterdir())
