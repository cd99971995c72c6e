"""`opsctl checkpoint offload` without torch."""

import hashlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.base.errors import InputError, OpsctlError
from opsctl.trainer import manifest
from tests.support.cases import read_cases
from tests.support.mounts import mounting
from tests.support.saved_checkpoints import flip, make_train, opsctl, save, steps

KILLED_AMID_A_COPY = Path(__file__).parents[2] / "support" / "killed_copy.py"
SUMS = "sh -c 'cd \"$0\" && find . -type f -print0 | xargs -0 sha256sum' {place}/{{train}}/{{name}}"

needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync here: apt-get install rsync")


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A train with checkpoints of the steps 10 to 40."""
    return make_train(tmp_path, monkeypatch)


def test_offload_copies_all_and_keeps_two(run, tmp_path):
    destination = tmp_path / "archive"
    text = opsctl("offload", "tiny", "--to", destination, "--dry-run")
    assert text.startswith("tiny: would copy step 10, 20, 30, 40, ")
    assert text.endswith("; would remove step 10, 20 here\n")
    assert not destination.exists()

    assert opsctl("offload", "tiny", "--to", destination) == (
        f"tiny: copied step 10, 20, 30, 40 to {destination}/tiny; removed step 10, 20 here\n"
    )
    assert steps(run / "checkpoints") == [30, 40]
    assert steps(destination / "tiny") == [10, 20, 30, 40]
    assert [manifest.verify(checkpoint.path) for checkpoint in manifest.list_checkpoints(destination / "tiny")] == [
        [],
        [],
        [],
        [],
    ]
    assert json.loads(opsctl("list", "tiny", "--json"))[0]["offloaded"] == [f"{destination}/tiny"]

    save(run / "checkpoints", 50)
    result = json.loads(opsctl("offload", "tiny", "--to", destination, "--json"))
    assert (result["copied"], result["removed"], result["failed"]) == ([50], [30], [])


def test_checkpoint_of_another_format_is_not_copied(run, tmp_path):
    """A checkpoint of another format is neither copied nor counted as one of the two that stay."""
    newest = run / "checkpoints" / "step-0000040"
    text = (newest / "manifest.json").read_text().replace('"format": 1', '"format": 7')
    (newest / "manifest.json").write_text(text)
    (newest / "COMPLETE").write_text(hashlib.sha256(text.encode()).hexdigest() + "\n")
    with pytest.raises(OpsctlError, match="step-0000040: this is not a manifest of format 1"):
        opsctl("offload", "tiny", "--to", tmp_path / "archive")
    assert steps(tmp_path / "archive" / "tiny") == [10, 20, 30]
    assert steps(run / "checkpoints") == [20, 30, 40]
    with pytest.raises(OpsctlError, match="not a manifest of format 1"):
        opsctl("prune", "tiny", "--keep-last", 2)
    assert steps(run / "checkpoints") == [20, 30, 40]


def test_truncated_note_of_copies_is_copied_again(run, tmp_path):
    destination = tmp_path / "archive"
    opsctl("offload", "tiny", "--to", destination, "--copy-only")
    (run / "checkpoints" / "step-0000040" / "OFFLOADED").write_text('{"to": "/arch')
    assert json.loads(opsctl("offload", "tiny", "--to", destination, "--json"))["copied"] == [40]
    assert json.loads(opsctl("offload", "tiny", "--to", destination, "--json"))["copied"] == []


def test_damaged_checkpoint_is_not_copied(run, tmp_path):
    destination = tmp_path / "archive"
    flip(run / "checkpoints" / "step-0000040" / "layer_00.pt")
    with pytest.raises(OpsctlError) as caught:
        opsctl("offload", "tiny", "--to", destination)
    assert caught.value.message == "step-0000040: layer_00.pt has changed since it was written (SHA-256 differs)"
    assert steps(destination / "tiny") == [10, 20, 30]
    assert steps(run / "checkpoints") == [20, 30, 40]


def test_other_checkpoint_of_same_step_is_not_overwritten(run, tmp_path):
    destination = tmp_path / "archive"
    save(destination / "tiny", 10, size=7)
    with pytest.raises(OpsctlError) as caught:
        opsctl("offload", "tiny", "--to", destination, "--copy-only")
    assert caught.value.message == f"{destination}/tiny/step-0000010 is another checkpoint of the same step"
    assert steps(destination / "tiny") == [10, 20, 30, 40]
    assert steps(run / "checkpoints") == [10, 20, 30, 40]


def test_interrupted_copy_is_resumed(run, tmp_path):
    """The copy is killed twice. A file under its final name is always whole and is not copied again."""
    destination = tmp_path / "archive"
    save(run / "checkpoints", 50, size=50_000)
    words = ["checkpoint", "offload", "tiny", "--to", str(destination)]
    argv = [sys.executable, "-m", "opsctl", *words]
    part = destination / "tiny" / ".offloading-step-0000050"
    for whole in (1, 2):
        killed = subprocess.run(
            [sys.executable, "-P", KILLED_AMID_A_COPY, "2", *words], capture_output=True, check=False
        )
        assert (killed.returncode, len(list(part.rglob("*.pt")))) == (-signal.SIGXFSZ, whole + 1), killed.stderr
        for checkpoint in manifest.list_checkpoints(destination / "tiny"):
            assert manifest.verify(checkpoint.path) == []
    *whole, _ = sorted(part.rglob("*.pt"), key=lambda path: path.stat().st_mtime_ns)  # the last was cut
    written = {path.relative_to(part): path.stat().st_mtime_ns for path in whole}
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert result.stdout == f"tiny: copied step 50 to {destination}/tiny; removed step 10, 20, 30 here\n"
    copied = destination / "tiny" / "step-0000050"
    assert manifest.verify(copied) == []
    assert not part.exists()
    assert {name: (copied / name).stat().st_mtime_ns for name in written} == written


def test_damaged_partial_copy_is_copied_again(run, tmp_path):
    destination = tmp_path / "archive"
    part = destination / "tiny" / ".offloading-step-0000010"
    part.mkdir(parents=True)
    (part / "layer_00.pt").write_bytes((run / "checkpoints" / "step-0000010" / "layer_00.pt").read_bytes())
    flip(part / "layer_00.pt")
    opsctl("offload", "tiny", "--to", destination)
    assert manifest.verify(destination / "tiny" / "step-0000010") == []


def test_damaged_copy_removes_no_local_checkpoint(run, tmp_path):
    destination = tmp_path / "archive"
    opsctl("offload", "tiny", "--to", destination, "--copy-only")
    flip(destination / "tiny" / "step-0000010" / "layer_00.pt")
    (run / "checkpoints" / "step-0000010" / "OFFLOADED").unlink()  # as if killed before the note was written
    with pytest.raises(OpsctlError, match=r"tiny/step-0000010 differs from the original: .*layer_00.pt has ch"):
        opsctl("offload", "tiny", "--to", destination)
    assert steps(run / "checkpoints") == [10, 30, 40]


@pytest.mark.root
def test_full_destination_removes_nothing(run, tmp_path):
    destination = tmp_path / "archive"
    destination.mkdir()
    with mounting(destination, "size=128k"):
        with pytest.raises(OpsctlError, match="No space left on device"):
            opsctl("offload", "tiny", "--to", destination)
        assert steps(run / "checkpoints")[-2:] == [30, 40]
        assert all(
            manifest.verify(checkpoint.path) == [] for checkpoint in manifest.list_checkpoints(destination / "tiny")
        )


def rsync(destination: Path) -> tuple[str, ...]:
    push = f"rsync -a --mkpath --files-from={{files}} {{source}} {shlex.quote(str(destination))}/{{train}}/{{name}}/"
    return ("--push", push, "--sums", SUMS.format(place=destination))


@needs_rsync
def test_push_program_copies_and_copies_are_verified(run, tmp_path):
    destination = tmp_path / "archive"
    result = json.loads(opsctl("offload", "tiny", *rsync(destination), "--json"))
    assert (result["copied"], result["removed"], result["failed"]) == ([10, 20, 30, 40], [10, 20], [])
    assert [manifest.verify(checkpoint.path) for checkpoint in manifest.list_checkpoints(destination / "tiny")] == [
        [],
        [],
        [],
        [],
    ]
    assert json.loads(opsctl("offload", "tiny", *rsync(destination), "--json"))["copied"] == []


@needs_rsync
def test_wrong_copy_of_push_program_is_refused(run, tmp_path):
    destination = tmp_path / "archive"
    corrupting_rsync = tmp_path / "spoils"
    corrupting_rsync.write_text('#!/bin/sh\nrsync "$@" || exit\nfor last; do :; done\necho x >>"$last/layer_00.pt"\n')
    corrupting_rsync.chmod(0o755)
    words = list(rsync(destination))
    words[1] = words[1].replace("rsync", str(corrupting_rsync), 1)
    with pytest.raises(OpsctlError) as caught:
        opsctl("offload", "tiny", *words)
    assert "step-0000010: 1 of 4 copied files are missing or differ: layer_00.pt" in caught.value.message
    assert steps(destination / "tiny") == []
    assert steps(run / "checkpoints") == [10, 20, 30, 40]


@pytest.mark.parametrize(*read_cases(__file__, "invalid_options_are_refused"))
def test_invalid_options_are_refused(run, words, message):
    with pytest.raises(InputError) as caught:
        opsctl("offload", "tiny", *words)
    assert caught.value.message == message


def test_failed_push_program_is_quoted(run):
    words = ("--push", "sh -c 'echo no route to vault >&2; exit 7' {source} {files}", "--sums", "true")
    with pytest.raises(OpsctlError) as caught:
        opsctl("offload", "tiny", *words)
    assert caught.value.message.splitlines()[0] == "sh ended with 7: no route to vault"
