"""Small file systems for tests of full disks."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounting(place: Path, options: str) -> Iterator[None]:
    """Mount a file system in memory with these options of mount. The test needs the marker `root`."""
    argv = ("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place))
    mounted = subprocess.run(argv, capture_output=True, text=True, timeout=250, check=False)
    if mounted.returncode:
        pytest.skip(f"root may not mount here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(("umount", "--lazy", str(place)), timeout=250, check=True)
