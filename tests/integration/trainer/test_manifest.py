"""Manifests: a checkpoint counts only when it is complete and verified."""

import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest

from opsctl.trainer import manifest
from opsctl.trainer.manifest import COMPLETE, MANIFEST, Checkpoint, FileRecord, Manifest


@pytest.fixture
def checkpoint(tmp_path):
    """A complete checkpoint of three small files."""
    path = tmp_path / "step-0000010"
    path.mkdir()
    files = {}
    for name, content in {"a.pt": b"alpha" * 50, "b.pt": b"", "name with spaces; $(x).pt": b"g" * 999}.items():
        (path / name).write_bytes(content)
        files[name] = FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    manifest.write_manifest(
        path,
        Manifest(
            step=10,
            consumed_samples=160,
            topology={"pipeline": 2, "data": 2},
            model={"layers": 2, "init_std": None},
            precision="fp32",
            save_s=1.5,
            files=files,
        ),
    )
    return path


def test_checkpoint_verifies_and_reads_back(checkpoint):
    assert manifest.verify(checkpoint) == []
    record = manifest.read_manifest(checkpoint)
    assert (record.step, record.consumed_samples, record.save_s) == (10, 160, 1.5)
    assert record.files["b.pt"].size == 0


def test_any_flipped_bit_is_detected(checkpoint):
    chance = random.Random(7)
    for path in checkpoint.iterdir():
        content = path.read_bytes()
        for place in chance.sample(range(len(content)), min(60, len(content))):
            flipped = bytearray(content)
            flipped[place] ^= 1 << chance.randrange(8)
            path.write_bytes(flipped)
            # the newline is the only byte of COMPLETE without meaning
            if flipped.strip() != content.strip():
                assert len(manifest.verify(checkpoint)) == 1, (path.name, place)
        path.write_bytes(content)
    assert manifest.verify(checkpoint) == []


def test_missing_or_truncated_file_is_named(checkpoint):
    (checkpoint / "a.pt").write_bytes(b"alpha")
    (checkpoint / "b.pt").unlink()
    assert manifest.verify(checkpoint) == [
        "step-0000010: a.pt has 5 bytes instead of 250",
        "step-0000010: b.pt is missing",
    ]
    (checkpoint / MANIFEST).unlink()
    assert "not complete" in manifest.verify(checkpoint)[0]


def test_copy_under_a_higher_step_is_damage(checkpoint):
    copy = checkpoint.with_name("step-0000020")
    shutil.copytree(checkpoint, copy)
    assert manifest.verify(copy) == [
        "step-0000020: the manifest is that of step 10; the directory is a renamed copy",
    ]
    assert not manifest.is_sound(copy)
    assert manifest.verify(checkpoint.rename(checkpoint.with_name("spare"))) == []


def test_ranks_share_the_hashing(checkpoint):
    (checkpoint / "a.pt").write_bytes(b"b" * 250)
    assert manifest.verify(checkpoint, mine=lambda number: number == 0)
    assert not manifest.verify(checkpoint, mine=lambda number: number != 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_not_damage(checkpoint):
    (checkpoint / "a.pt").chmod(0)
    with pytest.raises(PermissionError):
        manifest.verify(checkpoint)


def test_only_complete_checkpoints_count(checkpoint):
    directory = checkpoint.parent
    assert manifest.list_checkpoints(directory / "nowhere") == []
    for name in ("step-0000020", ".saving-step-0000030", "damaged-step-0000040", "step-5", "step-0000050.tmp"):
        (directory / name).mkdir()
    (directory / "damaged-step-0000040" / COMPLETE).touch()
    (directory / "latest").write_text("step-0000020")
    assert manifest.find_newest_complete(directory) == Checkpoint(10, checkpoint)
    (directory / "step-0000020" / COMPLETE).touch()
    assert manifest.find_newest_complete(directory).step == 20
    wide = directory / manifest.directory_name(12_345_678)
    wide.mkdir()
    (wide / COMPLETE).touch()
    assert manifest.find_newest_complete(directory).step == 12_345_678


def test_set_aside_never_overwrites(checkpoint):
    names = []
    for _ in range(3):
        aside = manifest.set_aside(checkpoint)
        names.append(aside.name)
        checkpoint.mkdir()
    assert names == ["damaged-step-0000010", "damaged-step-0000010.1", "damaged-step-0000010.2"]


STEPS = [Checkpoint(step, Path("nowhere")) for step in (5, 3, 1, 2, 4)]


@pytest.mark.parametrize(
    ("last", "every", "gone"),
    [(0, 0, []), (0, 2, []), (1, 0, [1, 2, 3]), (2, 0, [1, 2, 3]), (4, 0, [1]), (9, 0, []), (2, 2, [1, 3]), (2, 1, [])],
)
def test_last_and_every_nth_are_not_superfluous(last, every, gone):
    checkpoints = manifest.find_superfluous(STEPS, keep_last=last, keep_every=every, is_good=lambda _: True)
    assert [c.step for c in checkpoints] == gone


def make_five(directory: Path) -> list[Checkpoint]:
    for step in range(1, 6):
        path = directory / manifest.directory_name(step)
        path.mkdir()
        (path / "a.pt").write_bytes(b"alpha")
        record = FileRecord(size=5, sha256=hashlib.sha256(b"alpha").hexdigest())
        content = Manifest(
            step=step, consumed_samples=step, topology={}, model={}, precision="fp32", files={"a.pt": record}
        )
        manifest.write_manifest(path, content)
    return manifest.list_checkpoints(directory)


@pytest.mark.parametrize(
    ("damaged", "gone"),
    [([], [1, 2, 3]), ([5], [1, 2]), ([5, 4], [1]), ([5, 3], [1, 3]), ([5, 4, 3], [3]), ([1, 2, 3, 4], [])],
)
def test_last_two_good_ones_are_never_superfluous(tmp_path, damaged, gone):
    checkpoints = make_five(tmp_path)
    for step in damaged:
        (tmp_path / manifest.directory_name(step) / "a.pt").write_bytes(b"alp")
    assert [c.step for c in manifest.find_superfluous(checkpoints, keep_last=2)] == gone


def test_protected_checkpoint_is_never_superfluous(tmp_path):
    checkpoints = make_five(tmp_path)
    manifest.keep(checkpoints[0].path, "the loss doubled at step 2", by="loss spike")
    assert [c.step for c in manifest.find_superfluous(checkpoints, keep_last=2)] == [2, 3]
    assert manifest.read_keep(checkpoints[0].path)["reason"] == "the loss doubled at step 2"
    assert manifest.verify(checkpoints[0].path) == []


def test_half_removed_directory_is_no_checkpoint(tmp_path):
    oldest, *others = make_five(tmp_path)
    (oldest.path / "a.pt").chmod(0)
    manifest.remove(oldest.path)
    assert not oldest.path.exists()
    (others[0].path / COMPLETE).unlink()  # as an interrupted removal leaves a checkpoint
    assert [c.step for c in manifest.list_checkpoints(tmp_path)] == [3, 4, 5]


def test_interrupted_removal_is_finished_later(tmp_path, monkeypatch):
    def fail(_):
        raise OSError("Device or resource busy")

    *_, newest = make_five(tmp_path)
    with monkeypatch.context() as cut, pytest.raises(OSError, match="busy"):
        cut.setattr(manifest.shutil, "rmtree", fail)  # root may remove any file
        manifest.remove(newest.path)
    assert [c.step for c in manifest.list_checkpoints(tmp_path)] == [1, 2, 3, 4]
    assert len(list(tmp_path.iterdir())) == 5
    manifest.sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_returned_checkpoint_is_removed_again(tmp_path):
    *_, newest = make_five(tmp_path)
    left = newest.path.with_name(f".removing-{newest.path.name}")
    left.mkdir()
    (left / "a.pt").touch()
    manifest.remove(newest.path)
    assert len(list(tmp_path.iterdir())) == 4


def test_checkpoint_without_manifest_is_incomplete(tmp_path):
    (tmp_path / MANIFEST).mkdir()  # so that the manifest cannot be written
    with pytest.raises(IsADirectoryError):
        manifest.write_manifest(
            tmp_path, Manifest(step=1, consumed_samples=1, topology={}, model={}, precision="fp32", files={})
        )
    assert not (tmp_path / COMPLETE).exists()


def test_manifest_of_another_version_is_no_damage(checkpoint):
    text = (checkpoint / MANIFEST).read_text().replace('"format": 1', '"format": 7')
    (checkpoint / MANIFEST).write_text(text)
    (checkpoint / COMPLETE).write_text(hashlib.sha256(text.encode()).hexdigest() + "\n")
    with pytest.raises(OSError, match="step-0000010: this is not a manifest of format 1"):
        manifest.verify(checkpoint)


def test_only_the_newest_of_a_reason_stay_protected(tmp_path):
    checkpoints = []
    old = "loss spike: written by an earlier version"
    for step, by in enumerate((old, "by hand", "loss spike", "loss spike", ""), start=1):
        path = tmp_path / manifest.directory_name(step)
        path.mkdir()
        if by == old:
            (path / manifest.KEEP).write_text(old)
        elif by:
            manifest.keep(path, "loss spike: words decide nothing", by=by)
        checkpoints.append(manifest.Checkpoint(step=step, path=path))
    for _ in range(2):
        manifest.unprotect(checkpoints, by="loss spike", newest=2)
        assert [checkpoint.step for checkpoint in checkpoints if (checkpoint.path / manifest.KEEP).exists()] == [
            2,
            3,
            4,
        ]
