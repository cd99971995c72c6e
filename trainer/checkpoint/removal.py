"""Removal of old checkpoints and of the remains of saves, in a thread of rank 0.

Terabytes take minutes to delete, and every collective has a timeout: no rank waits for a removal. A removal is a
rename, which is done at once, and a deletion, which an interruption leaves to the next attempt.
"""

from __future__ import annotations

import threading
from pathlib import Path

from opsctl.trainer import manifest

_UNFINISHED = ".saving-*"


class Removal:
    """Deletes what was renamed in `directory`, one deletion at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread: threading.Thread | None = None
        self._failure = ""

    def retire_unfinished(self) -> None:
        """Rename the remains of interrupted saves and begin to delete them. Raises OSError."""
        for leftover in self._directory.glob(_UNFINISHED):
            manifest.retire(leftover)
        self.begin()

    def begin(self) -> None:
        """Begin to delete what was renamed, unless a deletion is under way, which the next call continues."""
        if self.is_under_way():
            return
        self._thread = threading.Thread(target=self._sweep, name="removal", daemon=True)
        self._thread.start()

    def is_under_way(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Wait for the deletion under way, at most `timeout_s`."""
        if self._thread:
            self._thread.join(timeout_s)

    def take_failure(self) -> str:
        """Return why the last deletion failed, once; empty if it did not."""
        failure, self._failure = self._failure, ""
        return failure

    def _sweep(self) -> None:
        try:
            manifest.sweep(self._directory)
        except OSError as error:
            self._failure = f"remains of a removed checkpoint cannot be deleted: {error}"
