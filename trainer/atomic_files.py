"""Write files completely or not at all.

Standard library only. opsctl imports these functions through opsctl/state/files.py.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, data: str | bytes, *, mode: int = 0o644) -> None:
    """Replace the file `path` with `data`; readers see either the old content or all of the new one.

    The guarantee holds after a power cut too. Raises OSError, and then leaves no temporary file.
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
    """Make renames and new names in the directory `path` survive a power cut, if the file system can."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
