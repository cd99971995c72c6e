"""Write new checkpoints from old ones, for any topology.

A new checkpoint is complete or does not exist.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from opsctl.trainer import manifest
from opsctl.trainer.atomic_files import fsync_directory
from opsctl.trainer.checkpoint.pickles import check_harmless
from opsctl.trainer.errors import Refused
from opsctl.trainer.manifest import FileRecord, Manifest

_TIMEOUT_S = 24 * 3600
"""Terabytes take hours."""
_MAX_SHOWN_LINES = 15
"""Lines of DeepSpeed's output in the error message."""


def read_verified(checkpoint: Path) -> Manifest:
    """Verify a checkpoint and return its manifest. Raises Refused."""
    try:
        problems = manifest.verify(checkpoint)
        if problems:
            raise Refused("; ".join(problems))
        return manifest.read_manifest(checkpoint)
    except (OSError, ValueError) as error:
        raise Refused(str(error)) from error


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield a directory that becomes `target` at the end of the block, or is removed on an error.

    Raises Refused, OSError.
    """
    if target.exists():
        raise Refused(f"{target} exists already")
    part = target.with_name(f".making-{target.name}")
    if part.exists():
        shutil.rmtree(part)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    fsync_directory(target.parent)


@contextlib.contextmanager
def new_checkpoint(target: Path, source: Manifest) -> Iterator[Path]:
    """Like `new_directory`, and write the manifest that makes the directory a checkpoint."""
    with new_directory(target) as part:
        yield part
        manifest.write_manifest(part, replace(source, files=_hash_files(part)))


def _hash_files(directory: Path) -> dict[str, FileRecord]:
    files = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        files[path.relative_to(directory).as_posix()] = FileRecord(size=path.stat().st_size, sha256=digest)
    return files


def reshape(source: Path, directory: Path, *, trust: bool = False) -> Path:
    """Write the checkpoint `source` for any topology and precision into `directory`; return the new path.

    Needs the space of three checkpoints while running, because DeepSpeed writes the parts first. Raises Refused,
    OSError.
    """
    saved = read_verified(source)
    if saved.kind != manifest.NATIVE:
        raise Refused(f"{source} is of kind {saved.kind}; only a checkpoint that the trainer saved can be reshaped")
    check_harmless((source / name for name in saved.files), trust=trust)  # DeepSpeed unpickles every file
    target = directory / manifest.directory_name(saved.step)
    with new_checkpoint(target, replace(saved, kind=manifest.UNIVERSAL)) as part:
        _convert(source, part)
        # DeepSpeed's pointer to the newest; this trainer derives the newest.
        (directory / "latest_universal").unlink(missing_ok=True)
    return target


def _convert(source: Path, target: Path) -> None:
    argv = [sys.executable, "-P", "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    argv += ["--input_folder", str(source.absolute()), "--output_folder", str(target.absolute())]
    argv += ["--num_extract_workers", "2", "--num_merge_workers", "2"]
    environ = {**os.environ, "DS_ACCELERATOR": "cpu"}  # the conversion only moves data between files
    done = subprocess.run(
        argv,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode or not (target / "zero").is_dir():
        raise Refused(
            f"DeepSpeed could not convert {source} (exit {done.returncode}):\n"
            + "\n".join(done.stdout.splitlines()[-_MAX_SHOWN_LINES:])
        )
