"""Read files that others may have made: regular files only, up to a limit. Standard library only."""

import errno
import os
import stat
from pathlib import Path

_READ_BLOCK_BYTES = 1 << 20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(path: str | Path, *, follow: bool = False) -> int:
    """Return a descriptor of the regular file `path`. Raises OSError for a link, unless `follow`, a pipe or a device.

    Another user may have made the file: a pipe would block the reader, and a link would lead to any other file.
    """
    try:
        handle = os.open(path, _OPEN & ~os.O_NOFOLLOW if follow else _OPEN)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a symbolic link", str(path)) from None
        raise
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_bounded(path: str | Path, max_bytes: int, *, follow: bool = False) -> bytes:
    """Return the content of the regular file `path`. Raises OSError, also for a file of more than `max_bytes`."""
    handle = open_regular(path, follow=follow)
    try:
        blocks, size = [], 0
        while size <= max_bytes and (data := os.read(handle, min(max_bytes + 1 - size, _READ_BLOCK_BYTES))):
            blocks.append(data)
            size += len(data)
    finally:
        os.close(handle)
    if size > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", str(path))
    return b"".join(blocks)
