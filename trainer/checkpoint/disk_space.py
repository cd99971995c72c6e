"""Is there room for a checkpoint? Asked before a save starts, so that a disk is not filled to find out."""

from __future__ import annotations

import os
from pathlib import Path

from opsctl.trainer import manifest

_BYTES = {"bf16": 14.5, "fp32": 16.5}
"""A parameter's: weight, and in fp32 the two means of the optimizer and, beside bf16, the weight itself; and a little
for what is around them."""
_A_FILE = 1 << 18
"""Beside its tensors: names, shapes, and the state of the random generators."""


def expected_size(directory: Path, *, parameters: int, precision: str, ranks: int) -> tuple[int, int]:
    """Bytes and files of the next checkpoint: as the newest has them, else by the number of parameters."""
    newest = manifest.find_newest_complete(directory)
    if newest is not None:
        try:
            files = manifest.read_manifest(newest.path).files
            return sum(record.size for record in files.values()), len(files) + 2
        except (OSError, ValueError):
            pass  # damaged, or of another version: told elsewhere
    return int(parameters * _BYTES[precision]) + ranks * _A_FILE, 4 * ranks + 2


def shortage(directory: Path, *, size: int, files: int) -> str:
    """What `directory` lacks for `files` files of `size` bytes together; empty if there is room. Raises OSError.

    File systems that make inodes as they go count none, and are asked for bytes alone. A quota is not seen here.
    """
    there = os.statvfs(directory)
    free = there.f_bavail * there.f_frsize
    lacking = []
    if free < size:
        lacking.append(f"needs about {size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free")
    if there.f_files and there.f_favail < files:
        lacking.append(f"needs about {files} files, and {there.f_favail} inodes are free")
    return f"not enough space in {directory}: {'; '.join(lacking)}" if lacking else ""
