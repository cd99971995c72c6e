"""Recorded error messages of every Slurm version, and the errors that they raise."""

from __future__ import annotations

import re

import pytest

from opsctl.base.errors import NotAllowed, OpsctlError, SlurmError, Unreachable
from opsctl.base.ports import Completed
from opsctl.slurm.slurm_errors import GONE, NOT_PENDING, UNKNOWN_ID, raise_for_error
from tests.support.cases import read_cases
from tests.versions import CORPUS, VERSIONS, recorded

DOWN = [(path.parent.name, path.stem) for path in sorted((CORPUS / "stderr").glob("*/*-down.txt"))]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


def failed_command(version: str, case: str, *, code: int = 1) -> Completed:
    return Completed(argv=(case.split("-", 1)[0],), code=code, out="", err=recorded("stderr", version, case))


@pytest.mark.parametrize(("version", "case"), DOWN)
def test_missing_answer_is_unreachable(version, case):
    with pytest.raises(Unreachable) as caught:
        raise_for_error(failed_command(version, case), fine=(GONE, NOT_PENDING, UNKNOWN_ID))
    assert caught.value.exit_code == 75
    assert caught.value.hint == "check that slurmctld is running: opsctl doctor"


@pytest.mark.parametrize("case", ["hold-not-owner", "cancel-not-owner"])
def test_job_of_another_user_is_not_allowed(version, case):
    with pytest.raises(NotAllowed) as caught:
        raise_for_error(failed_command(version, case), fine=(GONE, UNKNOWN_ID))
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("case", "fine"),
    [
        ("hold-finished", (GONE,)),
        ("exclude-while-a-task-runs", (GONE, NOT_PENDING)),
        ("cancel-unknown-id", (GONE, UNKNOWN_ID)),
    ],
)
def test_completed_action_is_no_error(version, case, fine):
    raise_for_error(failed_command(version, case), fine=fine)


@pytest.mark.parametrize(*read_cases(__file__, "refusal_quotes_slurm"))
def test_refusal_quotes_slurm(version, case, message):
    with pytest.raises(SlurmError) as caught:
        raise_for_error(failed_command(version, case), fine=(GONE, NOT_PENDING))
    assert re.fullmatch(message, caught.value.message)
    assert not isinstance(caught.value, NotAllowed | Unreachable)


def test_unknown_field_is_an_error_despite_exit_code_0(version):
    with pytest.raises(SlurmError) as caught:
        raise_for_error(failed_command(version, "squeue-unknown-field", code=0))
    assert caught.value.message == "squeue does not know the field Nosuch"


def test_failure_without_a_message_is_an_error():
    with pytest.raises(OpsctlError, match="scontrol refused: exit code 1 and no message"):
        raise_for_error(Completed(argv=("scontrol",), code=1, out="", err=" \n"), fine=(GONE,))
