"""Read files that others may have made: regular files only, up to a limit. Standard library only."""

import errno
import os
import stat
from pathlib import Path

_READ_BLOCK_BYTES = 1 << 20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(path: str | Path, *, follow: bool = False) -> int:
    """Return a descriptor of the regular file `path`. Raises OSError for a link, unless `follow`, a pipe or a device.

    Another user may have made the file: a pipe would block the reader, and a link would lead to any other file. Of the
    directories on the way, one may be a link of root, of this user, or of the owner of the file.
    """
    try:
        handle = os.open(path, _OPEN & ~os.O_NOFOLLOW if follow else _OPEN)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a symbolic link", str(path)) from None
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        # Where no part of the name is a link, the kernel has the same name for the file.
        is_direct = follow or os.readlink(f"/proc/self/fd/{handle}") == str(path)  # noqa: PTH115 (as os.open)
        if not is_direct and _is_led(path, status.st_uid):
            raise OSError(errno.ELOOP, "behind a symbolic link of another user", str(path))
    except OSError:
        os.close(handle)
        raise
    return handle


def _is_led(path: str | Path, owner: int) -> bool:
    """Whether a link of somebody else leads to a file of `owner`, such as one that only this user can read."""
    for parent in Path(path).parents:
        status = os.lstat(parent)
        if stat.S_ISLNK(status.st_mode) and status.st_uid not in {0, os.geteuid(), owner, _find_unmapped_owner()}:
            return True
    return False


def _find_unmapped_owner() -> int:
    """Return the number of all users whom this user namespace does not have, root perhaps among them; else 0."""
    is_whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    return 0 if is_whole else int(Path("/proc/sys/kernel/overflowuid").read_text())


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
