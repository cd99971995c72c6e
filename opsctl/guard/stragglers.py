"""Ranks that outlive a failed rank. Slurm ends the other ranks at once, but waits for ranks on a dead node.

Slurm itself notices a dead node after SlurmdTimeout, 5 minutes by default.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opsctl.base.ports import Clock
from opsctl.state.files import MAX_NUMBER_BYTES, read_text

PROBE_AFTER_S = 0.5
"""Before that, Slurm is about to end the other ranks."""
PROBE_LIMIT_S = 8.0
"""Also after a shorter grace, ranks get time until the probe has ended: a restart must know lost nodes."""


@dataclass(slots=True, kw_only=True)
class Stragglers:
    """Decides when the ranks that outlive a failed rank have had enough time."""

    first_exit: Path
    """The file with the exit code of the rank that failed first. It appears when a rank fails."""
    grace_s: float
    clock: Clock
    find_missing_nodes: Callable[[], tuple[str, ...]]
    """Returns the nodes of the job that do not answer. Called once per start of the ranks, in a thread."""
    lost_nodes: tuple[str, ...] = ()
    """The nodes that did not answer."""
    _since_s: float | None = None
    _thread: threading.Thread | None = None

    def are_late(self) -> bool:
        """Return whether a rank failed more than `grace_s` ago, counted from the first call that saw the failure.

        Ranks on a node that does not answer get no grace.
        """
        if self.code is None:
            # The body removes an earlier file before it starts the ranks.
            self._since_s, self._thread, self.lost_nodes = None, None, ()
            return False
        if self._since_s is None:
            self._since_s = self.clock.monotonic()
        past_s = self.clock.monotonic() - self._since_s
        if past_s > PROBE_AFTER_S and self._thread is None:
            self._thread = threading.Thread(target=self._probe, daemon=True)
            self._thread.start()
        is_probing = self._thread is not None and self._thread.is_alive() and past_s < PROBE_LIMIT_S
        return bool(self.lost_nodes) or (past_s > self.grace_s and not is_probing)

    def _probe(self) -> None:
        lost_nodes = self.find_missing_nodes()
        if self._thread is threading.current_thread():  # the body may have started the ranks again
            self.lost_nodes = lost_nodes

    @property
    def why(self) -> str:
        """Why the ranks get no more time."""
        return f"{', '.join(self.lost_nodes)} did not answer" if self.lost_nodes else f"{self.grace_s:g} s have passed"

    @property
    def code(self) -> int | None:
        """The exit code of the rank that failed first; None if no rank has failed."""
        try:
            return int(read_text(self.first_exit, MAX_NUMBER_BYTES))
        except (OSError, ValueError):
            return None
