"""Ranks that outlive a failed rank. srun ends the other ranks at once, but waits for ranks on a dead node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.ports import Clock
from opsctl.state.files import MAX_NUMBER_BYTES, read_text


@dataclass(slots=True, kw_only=True)
class Stragglers:
    """Decides when the ranks that outlive a failed rank have had enough time."""

    first_exit: Path
    """The file with the exit code of the rank that failed first. It appears when a rank fails."""
    grace_s: float
    clock: Clock
    _since_s: float | None = None

    def are_late(self) -> bool:
        """Return whether a rank failed more than `grace_s` ago, counted from the first call that saw the failure."""
        if self.code is None:
            self._since_s = None  # the body removes an earlier file before it starts the ranks
            return False
        if self._since_s is None:
            self._since_s = self.clock.monotonic()
        return self.clock.monotonic() - self._since_s > self.grace_s

    @property
    def code(self) -> int | None:
        """The exit code of the rank that failed first; None if no rank has failed."""
        try:
            return int(read_text(self.first_exit, MAX_NUMBER_BYTES))
        except (OSError, ValueError):
            return None
