"""`opsctl checkpoint offload`, on files alone."""

import hashlib
import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.errors import InputError, OpsctlError
from opsctl.trainer import manifest
from tests.support.saved_checkpoints import flip, make_train, opsctl, save, steps

KILLED_AMID_A_COPY = Path(__file__).parents[2] / "support" / "killed_copy.py"
SUMS = "sh -c 'cd \"$0\" && find . -type f -print0 | xargs -0 sha256sum' {place}/{{train}}/{{name}}"

needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync here: apt-get install rsync")


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A train with checkpoints of the steps 10 to 40."""
    return make_train(tmp_path, monkeypatch)


def test_offload_copies_all_and_keeps_two(run, tmp_path):
    place = tmp_path / "archive"
    text = opsctl("offload", "tiny", "--to", place, "--dry-run")
    assert text.startswith("tiny: would copy step 10, 20, 30, 40, ")
    assert text.endswith("; would remove step 10, 20 here\n")
    assert not place.exists()

    assert opsctl("offload", "tiny", "--to", place) == (
        f"tiny: copied step 10, 20, 30, 40 to {place}/tiny; removed step 10, 20 here\n"
    )
    assert steps(run / "checkpoints") == [30, 40]
    assert steps(place / "tiny") == [10, 20, 30, 40]
    assert [manifest.verify(checkpoint.path) for checkpoint in manifest.list_checkpoints(place / "tiny")] == [
        [],
        [],
        [],
        [],
    ]
    assert json.loads(opsctl("list", "tiny", "--json"))[0]["offloaded"] == [f"{place}/tiny"]

    save(run / "checkpoints", 50)
    done = json.loads(opsctl("offload", "tiny", "--to", place, "--json"))
    assert (done["copied"], done["removed"], done["failed"]) == ([50], [30], [])


def test_one_that_cannot_be_read_is_not_copied_nor_counted_among_the_two_that_stay(run, tmp_path):
    """Of another version: that it is damaged is not known either."""
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


def test_a_note_of_copies_that_is_half_written_has_it_copied_again(run, tmp_path):
    place = tmp_path / "archive"
    opsctl("offload", "tiny", "--to", place, "--copy-only")
    (run / "checkpoints" / "step-0000040" / "OFFLOADED").write_text('{"to": "/arch')
    assert json.loads(opsctl("offload", "tiny", "--to", place, "--json"))["copied"] == [40]
    assert json.loads(opsctl("offload", "tiny", "--to", place, "--json"))["copied"] == []


def test_a_damaged_checkpoint_is_not_copied_and_makes_none_go_that_is_needed(run, tmp_path):
    place = tmp_path / "archive"
    flip(run / "checkpoints" / "step-0000040" / "layer_00.pt")
    with pytest.raises(OpsctlError) as caught:
        opsctl("offload", "tiny", "--to", place)
    assert caught.value.message == "step-0000040: layer_00.pt has changed since it was written (SHA-256 differs)"
    assert steps(place / "tiny") == [10, 20, 30]
    assert steps(run / "checkpoints") == [20, 30, 40]


def test_another_checkpoint_of_that_step_is_not_overwritten(run, tmp_path):
    place = tmp_path / "archive"
    save(place / "tiny", 10, size=7)
    with pytest.raises(OpsctlError) as caught:
        opsctl("offload", "tiny", "--to", place, "--copy-only")
    assert caught.value.message == f"{place}/tiny/step-0000010 is another checkpoint of the same step"
    assert steps(place / "tiny") == [10, 20, 30, 40]
    assert steps(run / "checkpoints") == [10, 20, 30, 40]


def test_cut_off_amid_a_file_it_goes_on_where_it_was(run, tmp_path):
    """Killed twice; what has its name at the destination is always whole, and what is there is not copied again."""
    place = tmp_path / "archive"
    save(run / "checkpoints", 50, size=50_000)
    words = ["checkpoint", "offload", "tiny", "--to", str(place)]
    argv = [sys.executable, "-m", "opsctl", *words]
    part = place / "tiny" / ".offloading-step-0000050"
    for whole in (1, 2):
        killed = subprocess.run(
            [sys.executable, "-P", KILLED_AMID_A_COPY, "2", *words], capture_output=True, check=False
        )
        assert (killed.returncode, len(list(part.rglob("*.pt")))) == (-signal.SIGXFSZ, whole + 1), killed.stderr
        for checkpoint in manifest.list_checkpoints(place / "tiny"):
            assert manifest.verify(checkpoint.path) == []
    *whole, _ = sorted(part.rglob("*.pt"), key=lambda path: path.stat().st_mtime_ns)  # the last was cut
    written = {path.relative_to(part): path.stat().st_mtime_ns for path in whole}
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"tiny: copied step 50 to {place}/tiny; removed step 10, 20, 30 here\n"
    copied = place / "tiny" / "step-0000050"
    assert manifest.verify(copied) == []
    assert not part.exists()
    assert {name: (copied / name).stat().st_mtime_ns for name in written} == written


def test_what_a_cut_left_damaged_is_copied_anew(run, tmp_path):
    place = tmp_path / "archive"
    part = place / "tiny" / ".offloading-step-0000010"
    part.mkdir(parents=True)
    (part / "layer_00.pt").write_bytes((run / "checkpoints" / "step-0000010" / "layer_00.pt").read_bytes())
    flip(part / "layer_00.pt")
    opsctl("offload", "tiny", "--to", place)
    assert manifest.verify(place / "tiny" / "step-0000010") == []


def test_a_copy_that_no_longer_verifies_takes_nothing_away_here(run, tmp_path):
    place = tmp_path / "archive"
    opsctl("offload", "tiny", "--to", place, "--copy-only")
    flip(place / "tiny" / "step-0000010" / "layer_00.pt")
    (run / "checkpoints" / "step-0000010" / "OFFLOADED").unlink()  # cut off before it was noted
    with pytest.raises(OpsctlError, match=r"tiny/step-0000010 differs from the original: .*layer_00.pt has ch"):
        opsctl("offload", "tiny", "--to", place)
    assert steps(run / "checkpoints") == [10, 30, 40]


def test_a_full_destination_is_said_and_nothing_goes(run, tmp_path):
    place = tmp_path / "archive"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", place], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs to mount")
    try:
        with pytest.raises(OpsctlError, match="No space left on device"):
            opsctl("offload", "tiny", "--to", place)
        assert steps(run / "checkpoints")[-2:] == [30, 40]
        assert all(manifest.verify(checkpoint.path) == [] for checkpoint in manifest.list_checkpoints(place / "tiny"))
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def rsync(place: Path) -> tuple[str, ...]:
    push = f"rsync -a --mkpath --files-from={{files}} {{source}} {shlex.quote(str(place))}/{{train}}/{{name}}/"
    return ("--push", push, "--sums", SUMS.format(place=place))


@needs_rsync
def test_a_program_copies_and_what_it_copied_is_verified(run, tmp_path):
    place = tmp_path / "archive"
    done = json.loads(opsctl("offload", "tiny", *rsync(place), "--json"))
    assert (done["copied"], done["removed"], done["failed"]) == ([10, 20, 30, 40], [10, 20], [])
    assert [manifest.verify(checkpoint.path) for checkpoint in manifest.list_checkpoints(place / "tiny")] == [
        [],
        [],
        [],
        [],
    ]
    assert json.loads(opsctl("offload", "tiny", *rsync(place), "--json"))["copied"] == []


@needs_rsync
def test_a_program_that_copies_wrongly_makes_no_checkpoint_there(run, tmp_path):
    place = tmp_path / "archive"
    spoils = tmp_path / "spoils"
    spoils.write_text('#!/bin/sh\nrsync "$@" || exit\nfor last; do :; done\necho x >>"$last/layer_00.pt"\n')
    spoils.chmod(0o755)
    words = list(rsync(place))
    words[1] = words[1].replace("rsync", str(spoils), 1)
    with pytest.raises(OpsctlError) as caught:
        opsctl("offload", "tiny", *words)
    assert "step-0000010: 1 of 4 copied files are missing or differ: layer_00.pt" in caught.value.message
    assert steps(place / "tiny") == []
    assert steps(run / "checkpoints") == [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "needs either --to DIRECTORY, or --push and --sums"),
        (("--to", "x", "--push", "y"), "needs either --to DIRECTORY, or --push and --sums"),
        (("--push", "cp {source}", "--sums", "z"), "--push needs {files}"),
        (("--push", "cp {source} {files}"), "--sums needs a command"),
        (
            ("--push", "cp {source} {files} {where}", "--sums", "z"),
            "'{where}': 'where' is not a placeholder; there are {source}, {files}, {name}, {train}",
        ),
    ],
)
def test_commands_that_cannot_be_meant_are_refused(run, words, said):
    with pytest.raises(InputError) as caught:
        opsctl("offload", "tiny", *words)
    assert caught.value.message == said


def test_a_program_that_fails_is_quoted(run):
    words = ("--push", "sh -c 'echo no route to vault >&2; exit 7' {source} {files}", "--sums", "true")
    with pytest.raises(OpsctlError) as caught:
        opsctl("offload", "tiny", *words)
    assert caught.value.message.splitlines()[0] == "sh ended with 7: no route to vault"
