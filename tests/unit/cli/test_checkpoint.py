"""`opsctl checkpoint`, on files alone: list, verify, prune, offload. What needs torch is in
tests/integration/trainer."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli import cli
from opsctl.errors import InputError, OpsctlError, RunDirError
from opsctl.trainer import manifest
from opsctl.trainer.manifest import FileRecord, Manifest

KILLED_AMID_A_COPY = Path(__file__).parents[2] / "support" / "killed_copy.py"
SUMS = "sh -c 'cd \"$0\" && find . -type f -print0 | xargs -0 sha256sum' {place}/{{train}}/{{name}}"

needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync here: apt-get install rsync")


def opsctl(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["checkpoint", *map(str, words)], standalone_mode=False, prog_name="opsctl")
    if done.exception:
        raise done.exception
    assert (done.return_value or 0) == code
    return done.stdout


@dataclass(frozen=True, slots=True)
class Refused:
    out: str
    error: OpsctlError


def refused(*words: object) -> Refused:
    """What a verb printed that ended with exit code 1, and said why."""
    done = CliRunner().invoke(cli, ["checkpoint", *map(str, words)], standalone_mode=False, prog_name="opsctl")
    assert isinstance(done.exception, OpsctlError)
    assert done.exception.exit_code == 1
    return Refused(done.stdout, done.exception)


def shut(checkpoint: Path, name: str) -> None:
    """That file cannot be looked at, by root either: the name it leads to is longer than any file system takes."""
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
    held = Manifest(
        step=step,
        consumed_samples=16 * step,
        topology={"pipeline": 2, "data": 2},
        model={},
        precision="bf16",
        files=files,
    )
    manifest.write_manifest(path, held)
    return path


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """A train with checkpoints of the steps 10 to 40."""
    monkeypatch.setenv("OPSCTL_ROOT", str(tmp_path / "trains"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "trains" / "tiny"
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


def test_brackets_and_colons_in_a_list_are_what_they_are(run):
    manifest.keep(run / "checkpoints" / "step-0000020", "[/x] a [red] spike :fire:")
    assert "[/x] a [red] spike :fire:" in opsctl("list", "tiny")


def test_the_interpreter_that_another_users_train_names_is_not_run(run, monkeypatch):
    """Whoever may read a checkpoint may export it, by their own Python."""
    (run.parent / "torch.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(run.parent))
    program, ran = run / "python", run.parent.parent / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    config = run / "train.toml"
    config.write_text(f'python = "{program}"\n' + config.read_text())
    opsctl("export", "tiny", run.parent.parent / "out")
    assert ran.exists()
    ran.unlink()
    config.chmod(0o666)
    with pytest.raises(RunDirError, match=r"train\.toml: mode 0666 lets others write"):
        opsctl("export", "tiny", run.parent.parent / "out")
    if os.geteuid() == 0:
        os.chown(run, 12345, -1)
        opsctl("export", "tiny", run.parent.parent / "out", code=7)
    assert not ran.exists()


def test_a_list_tells_size_and_place_of_each(run):
    manifest.keep(run / "checkpoints" / "step-0000020", "a spike")
    (run / "checkpoints" / "step-0000030" / "layer_00.pt").unlink()
    rows = json.loads(opsctl("list", "tiny", "--json"))
    assert [(row["step"], row["kept"], row["problem"]) for row in rows] == [
        (10, "", ""),
        (20, "a spike", ""),
        (30, "", "a file is missing or too short"),
        (40, "", ""),
    ]
    assert rows[0]["topology"] == "data=2 pipeline=2"
    assert "data=2 pipeline=2" in opsctl("list", "tiny")


def test_verify_says_that_there_is_nothing_to_verify(run):
    for path in (run / "checkpoints").iterdir():
        shutil.rmtree(path)
    assert opsctl("verify", "tiny") == "tiny: no checkpoints\n"


def test_verify_names_what_is_damaged_and_exits_1(run):
    assert opsctl("verify", "tiny", "--step", 40) == "step-0000040: verified\n"
    flip(run / "checkpoints" / "step-0000020" / "zero" / "0.weight" / "fp32.pt")
    assert opsctl("verify", "tiny", code=1) == (
        "step-0000010: verified\n"
        "step-0000020: damaged\n"
        "  step-0000020: zero/0.weight/fp32.pt has changed since it was written (SHA-256 differs)\n"
        "step-0000030: verified\n"
        "step-0000040: verified\n"
    )
    with pytest.raises(InputError) as caught:
        opsctl("verify", "tiny", "--step", 50)
    assert caught.value.message == "tiny: no checkpoint of step 50; existing checkpoints: step 10, 20, 30, 40"


def test_prune_never_removes_the_last_two_that_verify(run):
    flip(run / "checkpoints" / "step-0000040" / "layer_00.pt")
    damaged = ["step-0000040: layer_00.pt has changed since it was written (SHA-256 differs)"]
    assert refused("prune", "tiny", "--keep-last", 2, "--dry-run").out.startswith("tiny: would remove step 10, ")
    assert steps(run / "checkpoints") == [10, 20, 30, 40]
    done = refused("prune", "tiny", "--keep-last", 2, "--json")
    assert (json.loads(done.out)["removed"], json.loads(done.out)["failed"]) == ([10], damaged)
    assert done.error.message == damaged[0]
    assert "opsctl checkpoint verify tiny" in str(done.error.hint)
    assert steps(run / "checkpoints") == [20, 30, 40]
    assert refused("prune", "tiny", "--keep-last", 2).out == "tiny: nothing to remove\n"


def test_prune_keeps_every_nth_and_what_is_kept_for_study(run):
    save(run / "checkpoints", 50)
    manifest.keep(run / "checkpoints" / "step-0000010", "a spike")
    done = json.loads(opsctl("prune", "tiny", "--keep-last", 2, "--keep-every", 20, "--json"))
    assert done["removed"] == [30]


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


@pytest.mark.parametrize("name", ["COMPLETE", "manifest.json"])
def test_one_that_cannot_be_looked_into_keeps_no_verb_from_the_others(run, tmp_path, name):
    """It is named with what to do, counts for none of the two that stay, and goes nowhere."""
    save(run / "checkpoints", 50)
    shut(run / "checkpoints" / "step-0000010", name)
    shut(run / "checkpoints" / "step-0000040", name)
    rows = json.loads(opsctl("list", "tiny", "--json", code=1))
    assert [row["step"] for row in rows if row["is_unread"] and "File name too long" in row["problem"]] == [10, 40]
    verdicts = json.loads(opsctl("verify", "tiny", "--json", code=1))
    assert [verdict["verdict"] for verdict in verdicts] == ["unknown", "verified", "verified", "unknown", "verified"]

    done = refused("prune", "tiny", "--keep-last", 2, "--json")
    assert json.loads(done.out)["removed"] == [20]  # of 30 and 50 both are needed: 40 may be no good
    assert [line.partition(", so it is left alone")[0] for line in json.loads(done.out)["failed"]] == [
        "step-0000010: cannot be read",
        "step-0000040: cannot be read",
    ]
    save(run / "checkpoints", 60)
    done = refused("offload", "tiny", "--to", tmp_path / "archive", "--json")
    told = json.loads(done.out)
    assert (told["copied"], told["removed"]) == ([30, 50, 60], [30])
    assert [f"step-00000{step}0" in line for step, line in zip((1, 4), told["failed"], strict=True)] == [True, True]
    assert sorted(path.name[-2:] for path in (run / "checkpoints").glob("step-*")) == ["10", "40", "50", "60"]


def test_a_removal_that_fails_keeps_the_others_from_nothing(run):
    """A file has taken the place to which the first is moved."""
    (run / "checkpoints" / ".removing-step-0000010").write_text("")
    done = refused("prune", "tiny", "--keep-last", 2, "--json")
    assert json.loads(done.out)["removed"] == [20]
    assert "step-0000010: cannot be removed: " in done.error.message
    assert steps(run / "checkpoints") == [10, 30, 40]


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
    with pytest.raises(OpsctlError, match=r"tiny/step-0000010 is not what was copied: .*layer_00.pt has ch"):
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
    assert "step-0000010: 1 of 4 files are not there as they are here: layer_00.pt" in caught.value.message
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
