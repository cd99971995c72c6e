"""When the queued tasks of a train run out, if they do not suffice for its last step."""

import math
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from statistics import fmean

from opsctl.dash.show_times import format_day_time
from opsctl.guard.deadline import read_limit_s
from opsctl.monitor.status import Shortage, TrainStatus
from opsctl.state.journal import TrainHistory
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.step_pace import measure_waits

SOON = timedelta(hours=1)
"""An end that is nearer needs a decision; before, there is time."""
MAX_AHEAD_S = 20 * 365 * 86400.0
"""A queue that lasts longer has no end worth showing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEnd(Shortage):
    """The shortage, and when it begins."""

    at: datetime | None
    """About when the last queued task ends; None if the tasks have no time limit."""

    @property
    def missing(self) -> int:
        return self.needed - self.queued

    def describe(self, now: datetime) -> str:
        when = f" about {format_day_time(now, self.at)}" if self.at else " before the last step"
        return f"Queued tasks run out{when} ({self.queued} of {self.needed} needed are queued)"


def find_queue_end(run: RunDir, status: TrainStatus, history: TrainHistory, now: datetime) -> QueueEnd | None:
    """Return the end of the queue; None if the queued tasks suffice, or if what is needed is unknown."""
    shortage = status.shortage
    if shortage is None:
        return None
    waits_s = measure_waits(history)
    task_s = read_limit_s(run.config) + (fmean(waits_s) if waits_s else 0.0)
    ends = status.running[0].ends if status.running else None
    ahead_s = shortage.queued * task_s if shortage.queued else 0.0
    is_known = math.isfinite(ahead_s) and ahead_s < MAX_AHEAD_S and (ends is not None or not status.running)
    at = max(ends or now, now) + timedelta(seconds=ahead_s) if is_known else None
    return QueueEnd(**asdict(shortage), at=at)
