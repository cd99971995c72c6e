"""Slurm's words for the states of a job: closed, and never an ending where the word is not known."""

from __future__ import annotations

from opsctl.model import JobState

COMPACT = {
    "BF": JobState.BOOT_FAIL,
    "CA": JobState.CANCELLED,
    "CD": JobState.COMPLETED,
    "CF": JobState.CONFIGURING,
    "CG": JobState.COMPLETING,
    "DL": JobState.DEADLINE,
    "F": JobState.FAILED,
    "NF": JobState.NODE_FAIL,
    "OOM": JobState.OUT_OF_MEMORY,
    "PD": JobState.PENDING,
    "PR": JobState.PREEMPTED,
    "R": JobState.RUNNING,
    "RD": JobState.RESV_DEL_HOLD,
    "RF": JobState.REQUEUE_FED,
    "RH": JobState.REQUEUE_HOLD,
    "RQ": JobState.REQUEUED,
    "RS": JobState.RESIZING,
    "RV": JobState.REVOKED,
    "S": JobState.SUSPENDED,
    "SE": JobState.SPECIAL_EXIT,
    "SI": JobState.SIGNALING,
    "SO": JobState.STAGE_OUT,
    "ST": JobState.STOPPED,
    "TO": JobState.TIMEOUT,
}
"""The 24 states of squeue(1), as its `%t` writes them."""

SLURM_STATES = {state.value: state for state in COMPACT.values()} | COMPACT


def parse_state(text: str) -> JobState:
    """The state that a word of squeue or sacct means: `CANCELLED by 1001` and `RUNNING+` both occur in real output."""
    word = text.split(maxsplit=1)[0].rstrip("+") if text.strip() else ""
    return SLURM_STATES.get(word, JobState.UNKNOWN)
