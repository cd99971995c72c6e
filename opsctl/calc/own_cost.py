"""What opsctl itself costs a run. Sources: docs/explanation/performance.md, docs/reference/slurm-load.md."""

import math

START_FILES, RANK_FILES = 8, 1
"""Files of one start of the trainer, and of each of its ranks."""
RANK_OPERATIONS = 400
"""File operations of a rank wrapper's start, by strace: nearly all are Python's search for its modules."""
SLURM_CALLS, VIEWER_CALLS = 24, 180
"""Calls of Slurm an hour: 12 by the guard and 12 by cron; at most by all `status --watch` of a user on a host."""


def estimate_own_cost(*, ranks: int, hours: float, failures: float, task_h: float) -> dict[str, int]:
    """Return the cost of a run whose trainer starts after every failure, and in every task of `task_h` hours."""
    starts = math.ceil(failures + max(1, hours / task_h))
    return {
        "starts": starts,
        "files": starts * (START_FILES + RANK_FILES * ranks),
        "file_operations_per_start": RANK_OPERATIONS * ranks,
        "slurm_calls_per_hour": SLURM_CALLS,
        "slurm_calls_per_hour_of_viewer": VIEWER_CALLS,
    }
