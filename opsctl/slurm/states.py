"""Slurm's words for the states of jobs and nodes. A word that is not known is never an end, nor a node in service."""

from opsctl.base.model import JobState
from opsctl.base.tables import read_package_table

JOB_WORDS = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
"""States and flags of a node that has a job."""

_WORDS = read_package_table("slurm/slurm_words.toml")
IN_SERVICE_WORDS = JOB_WORDS.union(_WORDS["in_service"])
"""States and flags of a node that runs jobs or waits for jobs."""

OUT_OF_SERVICE_WORDS = frozenset(_WORDS["out_of_service"])
"""States and flags of a node that gets no new jobs."""


def parse_state(text: str) -> JobState:
    """Return the job state that squeue or sacct printed, in forms such as `CANCELLED by 1001` and `RUNNING+`."""
    word = text.split(maxsplit=1)[0].rstrip("+") if text.strip() else ""
    return JobState.__members__.get(word, JobState.UNKNOWN)


def parse_node_reason(state: str, reason: str) -> str:
    """Return why a node is out of service; empty for a node in service.

    Since 24.11 Slurm stores the reason of a drain until the next drain, so RESUME leaves an old reason behind.
    """
    return "" if set(state.upper().split("+")) <= IN_SERVICE_WORDS else reason
