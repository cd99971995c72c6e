"""Write files completely or not at all.

Standard library only. opsctl imports these functions through opsctl/state/files.py.
"""

import contextlib
import os
import uuid
from pathlib import Path

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_atomic(path: Path, data: str | bytes, *, mode: int = 0o644) -> None:
    """Replace the file `path` with `data`; readers see either the old content or all of the new one.

    The guarantee holds after a power cut too. The mode is set on the open file, and all steps happen in the directory
    that was opened first: in a directory that others can write, a name can be exchanged between two steps. Raises
    OSError, and then leaves no temporary file.
    """
    payload = data.encode() if isinstance(data, str) else data
    temporary = f".{path.name}.{uuid.uuid4().hex[:8]}"
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        handle = os.open(temporary, _CREATE, 0o600, dir_fd=directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(payload)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.replace(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise
        with contextlib.suppress(OSError):
            os.fsync(directory)
    finally:
        os.close(directory)


def fsync_directory(path: Path) -> None:
    """Make renames and new names in the directory `path` survive a power cut, if the file system can."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
