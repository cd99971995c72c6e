"""What outlives a rank that failed. srun ends the other ranks at once, but waits in vain for those of a dead node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.ports import Clock


@dataclass(slots=True, kw_only=True)
class Stragglers:
    """Says when it has been long enough."""

    first_exit: Path
    """The exit code of the rank that failed first, once one has."""
    grace: float
    clock: Clock
    _since: float | None = None

    def are_late(self) -> bool:
        """A rank failed more than `grace` seconds ago, as far as we have looked."""
        if self.code is None:
            self._since = None  # the body takes an earlier one away before it starts the ranks
            return False
        if self._since is None:
            self._since = self.clock.monotonic()
        return self.clock.monotonic() - self._since > self.grace

    @property
    def code(self) -> int | None:
        """That exit code; None if no rank has failed."""
        try:
            return int(self.first_exit.read_text())
        except (OSError, ValueError):
            return None
