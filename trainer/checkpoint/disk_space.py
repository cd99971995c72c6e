"""Check for free space before a save starts, so that a save does not fill the disk."""

from __future__ import annotations

import os
from pathlib import Path

from opsctl.trainer import manifest

_BYTES_PER_PARAMETER = {"bf16": 14.5, "fp32": 16.5}
"""Weight, the optimizer's two means in fp32, with bf16 the fp32 weight, and a small reserve."""
_FILE_OVERHEAD_BYTES = 1 << 18
"""Names, shapes and the state of random generators in a file."""


def expected_size(directory: Path, *, parameters: int, precision: str, ranks: int) -> tuple[int, int]:
    """Return bytes and files of the next checkpoint: those of the newest, else an estimate by parameters."""
    newest = manifest.find_newest_complete(directory)
    if newest is not None:
        try:
            files = manifest.read_manifest(newest.path).files
            return sum(record.size for record in files.values()), len(files) + 2
        except (OSError, ValueError):
            pass  # damaged or of another version: resume reports the problem
    return int(parameters * _BYTES_PER_PARAMETER[precision]) + ranks * _FILE_OVERHEAD_BYTES, 4 * ranks + 2


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
