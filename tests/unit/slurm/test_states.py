import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.base.model import JobState
from opsctl.slurm.field_values import parse_state
from tests.support.cases import read_cases

MANUAL = """
BF BOOT_FAIL, CA CANCELLED, CD COMPLETED, CF CONFIGURING, CG COMPLETING, DL DEADLINE, F FAILED, NF NODE_FAIL,
OOM OUT_OF_MEMORY, PD PENDING, PR PREEMPTED, R RUNNING, RD RESV_DEL_HOLD, RF REQUEUE_FED, RH REQUEUE_HOLD,
RQ REQUEUED, RS RESIZING, RV REVOKED, SI SIGNALING, SE SPECIAL_EXIT, SO STAGE_OUT, ST STOPPED, S SUSPENDED,
TO TIMEOUT
"""


def test_table_matches_the_manual():
    """The source is JOB STATE CODES in squeue(1) of 22.05."""
    words = {entry.split()[1] for entry in MANUAL.split(",")}
    assert {state.value for state in JobState} - {"UNKNOWN"} == words


@pytest.mark.parametrize("state", JobState)
def test_state_has_at_most_one_property(state):
    assert [state.is_waiting, state.is_active, state.is_final].count(True) == (state is not JobState.UNKNOWN)


@pytest.mark.parametrize(*read_cases(__file__, "states_are_read_as_slurm_writes_them", state=JobState))
def test_states_are_read_as_slurm_writes_them(text, state):
    assert parse_state(text) is state


@given(st.text())
def test_unknown_state_is_not_final(text):
    state = parse_state(text)
    assert not state.is_final or text.split(maxsplit=1)[0].rstrip("+") in set(JobState)
