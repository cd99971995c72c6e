"""Files that are written completely or not at all.

Standard library only. opsctl takes these functions from opsctl/state/files.py.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, data: str | bytes, *, mode: int = 0o644) -> None:
    """Write `data` so that a reader sees all of it or what was there before, also after a power cut.

    Raises OSError, and then leaves nothing behind.
    """
    payload = data.encode() if isinstance(data, str) else data
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make a rename or a new name in `path` survive a power cut, where the file system can."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
