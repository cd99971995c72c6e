"""When a waiting train is expected to start."""

from datetime import UTC, datetime, timedelta

import pytest

from opsctl.base.model import Job, JobState
from opsctl.launch.wait_reasons import with_first_start
from tests.support.cases import read_cases

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.mark.parametrize(*read_cases(__file__, "start_of_an_array_is_that_of_its_first_task"))
def test_start_of_an_array_is_that_of_its_first_task(
    tasks: int, reason: str, limit: float, shown: float | None, expected: float | None
) -> None:
    """Minutes from now. Slurm 22.05.8 shows the start of the last task that it has planned, of 20 at most."""

    def at(minutes: float | None) -> datetime | None:
        return None if minutes is None else NOW + timedelta(minutes=minutes)

    array = tuple(range(1, tasks + 1))
    job = Job(
        id="7",
        array="7",
        name="t",
        user="u",
        tasks=array,
        state=JobState.PENDING,
        reason=reason,
        start=at(shown),
    )
    assert with_first_start(job, limit, NOW).start == at(expected)
