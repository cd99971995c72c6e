"""When a rank of an attempt last wrote to its log. A copy of the run directory loses the times of its files."""

import math
import os
from datetime import UTC, datetime

from opsctl.state.run_dir import Attempt, RunDir

MAX_RANK_LOGS = 4096
"""Logs of ranks whose last write is looked up."""
MAX_LATE_S = 60.0
"""A log that is written this long after the end of its attempt is a copy."""


def find_last_output(run: RunDir, attempt: str) -> float:
    """Return the time of the last write to any rank's log, nan if unknown."""
    latest = math.nan
    try:
        with os.scandir(run.attempt_logs(attempt)) as entries:
            for _, entry in zip(range(MAX_RANK_LOGS), entries, strict=False):
                if entry.name.endswith(".log"):
                    latest = max(entry.stat().st_mtime, latest)
    except OSError:
        return math.nan
    return latest


def date_last_output(run: RunDir, attempt: Attempt) -> datetime | None:
    """Return the time of the last write to any rank's log; None if unknown."""
    at = find_last_output(run, attempt.name)
    return None if math.isnan(at) else datetime.fromtimestamp(at, UTC)
