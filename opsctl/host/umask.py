"""The umask of this process."""

from __future__ import annotations

import re
from pathlib import Path


def read_umask(status: Path) -> int | None:
    """Return the umask that the kernel shows in /proc/self/status; None if unknown."""
    try:
        match = re.search(r"^Umask:\s*([0-7]+)$", status.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1], 8) if match else None
