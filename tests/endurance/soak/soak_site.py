"""The settings of the soak's site, and the long silence of its Slurm."""

from dataclasses import dataclass

from tests.support.cases import read_table

OUTAGE_CYCLES = 8
"""Long enough for the alert that Slurm does not answer, by a clock that does not jump."""
SITE = read_table(__file__, "site")


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
