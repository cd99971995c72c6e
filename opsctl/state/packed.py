"""What is packed: old files in one compressed archive, `NAME.tar.gz`, and the copies through which they are read.

NAME is a directory, or `flight` for the files `flight-*`. While the archive exists, readers read it, not the originals.
"""

import re
from pathlib import Path

from opsctl.base.errors import cannot_read
from opsctl.state.files import find_archive


def unpacked(path: Path) -> Path:
    """Return `path`, or its place in a copy if it is packed. Raises RunDirError."""
    archive = find_archive(path)
    if archive is None:
        return path
    from opsctl.state.archive import unpack  # noqa: PLC0415 (slow import)

    try:
        return unpack(archive) / path.name
    except OSError as error:
        raise cannot_read(archive, error) from error


def find_original(text: str) -> str:
    """Return the path of the original for the path of a copy; any other text unchanged."""
    return re.sub(r"^.*/opsctl-packed-\w+(?=/)", "", text)
