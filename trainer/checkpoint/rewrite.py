"""Write new checkpoints from old ones, for any topology.

A new checkpoint is complete or does not exist.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from opsctl.trainer import manifest
from opsctl.trainer.atomic_files import fsync_directory
from opsctl.trainer.checkpoint.pickles import check_harmless
from opsctl.trainer.errors import Refused
from opsctl.trainer.manifest import FileRecord, Manifest

RESHAPED = ".reshaped-"
"""Before the name of a checkpoint: the directory of its copy for any topology."""
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
    for leftover in target.parent.glob(f".making-{target.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    # A new name: programs of a killed process may still write below the last one.
    part = target.with_name(f".making-{target.name}.{uuid.uuid4().hex[:8]}")
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    fsync_directory(target.parent)


def _hash_files(directory: Path) -> dict[str, FileRecord]:
    files = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        files[path.relative_to(directory).as_posix()] = FileRecord(size=path.stat().st_size, sha256=digest)
    return files


def reshape(source: Path, directory: Path | None, *, trust: bool = False) -> Path:
    """Write the checkpoint `source` for any topology and precision into `directory`; return the new path.

    Without a directory, where the run of the checkpoint finds it. Raises Refused, OSError.
    """
    saved = read_verified(source)
    if saved.kind != manifest.NATIVE:
        raise Refused(f"{source} is of kind {saved.kind}; only a checkpoint that the trainer saved can be reshaped")
    check_harmless((source / name for name in saved.files), trust=trust)  # DeepSpeed unpickles every file
    return _write_universal(source, saved, directory) if directory else copy_for_any_topology(source, saved)


def copy_for_any_topology(source: Path, saved: Manifest) -> Path:
    """Return a sound copy of a verified checkpoint of this run, which an earlier attempt may have written.

    The name of its directory is not that of a checkpoint. A copy that a killed attempt left incomplete is never used.
    Raises Refused, OSError.
    """
    directory = source.with_name(f"{RESHAPED}{source.name}")
    with contextlib.suppress(Refused):  # not there, not complete or damaged
        copied = read_verified(directory / source.name)
        if replace(copied, kind=saved.kind, files=saved.files) == saved:  # and not of an older save of this step
            return directory / source.name
    if directory.exists():
        manifest.retire(directory)  # not removed: programs of a killed attempt may still write there
    return _write_universal(source, saved, directory)


def _write_universal(source: Path, saved: Manifest, directory: Path) -> Path:
    """Write `source` below `directory`, with room for three checkpoints: DeepSpeed writes the parts first."""
    directory.mkdir(parents=True, exist_ok=True)
    if lacking := shortage(directory, size=3 * sum(record.size for record in saved.files.values()), files=0):
        raise Refused(lacking)
    target = directory / manifest.directory_name(saved.step)
    with new_directory(target) as part:
        _convert(source, part)
        # DeepSpeed's pointer to the newest; this trainer derives the newest.
        (directory / "latest_universal").unlink(missing_ok=True)
        manifest.write_manifest(part, replace(saved, kind=manifest.UNIVERSAL, files=_hash_files(part)))
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


def shortage(directory: Path, *, size: int, files: int) -> str:
    """Return the shortage of `directory` for `files` files of `size` bytes in total; empty if there is space.

    Inodes are checked only if the file system limits them. Quotas are not checked. Raises OSError.
    """
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize
    lacking = []
    if free < size:
        lacking.append(f"needs about {size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free")
    if space.f_files and space.f_favail < files:
        lacking.append(f"needs about {files} files, and {space.f_favail} inodes are free")
    return f"not enough space in {directory}: {'; '.join(lacking)}" if lacking else ""
