"""The settings of the soak's site, and the long silence of its Slurm."""

from __future__ import annotations

from dataclasses import dataclass

OUTAGE_CYCLES = 8
"""Long enough for the alert that Slurm does not answer, by a clock that does not jump."""
SITE = """root = "{root}"
trust_parents = true
[watch]
timeout_seconds = 120
held_hours = 3
blocked_minutes = 1e6  # the watchers' clock is ahead of the clock by which Slurm reports the end of a job
[[filesystem]]
name = "scratch"
path = "{disk}"
warning_hours = 0
critical_hours = 0
[alerts]
fallback = "paper"
slurm_minutes = 60  # OUTAGE_CYCLES are longer, every other silence is shorter
[alerts.channels.mail]
kind = "email"
to = ["me@example.org"]
sender = "opsctl@example.org"
server = "127.0.0.1"
port = {port}
[alerts.channels.team]
kind = "slack"
token_file = "{token}"
channel = "C1"
api_url = "{slack}"
[alerts.channels.paper]
kind = "file"
path = "{paper}"
[[alerts.routes]]
channels = ["mail", "team"]
"""


@dataclass
class Outage:
    """A silence of Slurm that is long enough for an alert."""

    end: int = -1
    """The cycle in which the outage may end; -1: there is none."""
    is_recorded: bool = False
    """Whether a watcher has recorded the alert."""

    def is_awaited(self, number: int) -> bool:
        """Return whether the outage must go on for its alert: after a jump, limits are reached later."""
        return self.end >= 0 and not self.is_recorded and number < self.end + OUTAGE_CYCLES
