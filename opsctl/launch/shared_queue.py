"""One list of the queue for all viewers of a user on a host: who finds it too old asks Slurm, the others read it.

Commands that act ask Slurm. Users share no lists: whoever can write one can show any train as running or gone.
"""

import contextlib
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from opsctl.base.errors import OpsctlError, Unreachable
from opsctl.base.model import Job
from opsctl.base.ports import Clock
from opsctl.slurm.commands import Slurm, new_mark
from opsctl.slurm.parse_output import parse_jobs
from opsctl.slurm.slurm_errors import HINT
from opsctl.state.files import MAX_STATE_BYTES, read_with_status, write_atomic
from opsctl.state.lease import lease
from opsctl.state.trust import find_writers

LEASE_WAIT_S = 120.0
QUIET_FACTOR = 5
"""A list is used for at least so many times as long as Slurm took for it: a busy controller is asked less often."""
MAX_AGE_S = 120.0
"""The limit of that."""


@dataclass(slots=True)
class SharedQueue:
    """The list as one viewer sees it."""

    slurm: Slurm
    clock: Clock
    directory: Path
    max_age_s: float
    at: datetime | None = None
    """The time of the list that was returned last."""

    def read(self) -> list[Job]:
        """Return the stored list if it is not too old, else a new one. Raises Unreachable.

        While another viewer asks, its answer is waited for. If Slurm did not answer, nobody asks for a while.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, OpsctlError):  # without a lease, as on a full disk, each viewer asks
                self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                stack.enter_context(lease(self.directory, self.clock, wait=LEASE_WAIT_S))
            text, mark = self._read_stored() or self._ask()
        if not mark:
            raise Unreachable("Slurm has not answered a moment ago", hint=HINT)
        return parse_jobs(text, mark)

    def forget(self) -> None:
        """Let the next viewer ask Slurm: this process has changed the queue."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    @property
    def _file(self) -> Path:
        return self.directory / "list"

    def _read_stored(self) -> tuple[str, str] | None:
        """Return a list that is not too old, and the mark between its fields: empty if Slurm did not answer."""
        with contextlib.suppress(OSError, ValueError):
            status, data = read_with_status(self._file, MAX_STATE_BYTES)
            head, _, text = data.decode().partition("\n")
            at_s, took_s, mark = head.split(" ")
            max_age_s = max(self.max_age_s, min(QUIET_FACTOR * float(took_s), MAX_AGE_S))
            is_fresh = abs(self.clock.now().timestamp() - float(at_s)) <= max_age_s
            if is_fresh and not find_writers(status, {os.geteuid()}):
                self.at = datetime.fromtimestamp(float(at_s), UTC)
                return text, mark
        return None

    def _ask(self) -> tuple[str, str]:
        # A new mark each time: a job's name may contain that of a list that its user has seen.
        slurm, mark, text = replace(self.slurm, mark=new_mark()), "", ""
        self.at, began_s = self.clock.now(), self.clock.monotonic()
        try:
            text = slurm.list_queue()
            mark = slurm.mark
        finally:
            head = f"{self.at.timestamp()} {self.clock.monotonic() - began_s:.3f} {mark}"
            with contextlib.suppress(OSError):
                write_atomic(self._file, f"{head}\n{text}", mode=0o600)
        return text, mark
