"""The rows of the queue that belong to a train, by the nonce in their comment."""

import pytest

from opsctl.base.model import Job, JobState
from opsctl.host.system import SystemClock
from opsctl.launch.train_arrays import take_snapshot
from opsctl.state.events import Submitted, Submitting
from opsctl.state.journal import Journal, actor
from opsctl.state.run_dir import RunDir
from tests.support.cases import read_cases


def row(array, comment, *, state=JobState.PENDING, tasks=(1, 2), name="gpt", **more):
    return Job(id=array, array=array, tasks=tasks, name=name, user=actor(), state=state, comment=comment, **more)


@pytest.fixture
def journal(tmp_path):
    run = RunDir(tmp_path / "gpt")
    run.create()
    return Journal(run, SystemClock())


def submit(journal, nonce, array):
    journal.append(Submitting(nonce=nonce, tasks=2, after=""))
    journal.append(Submitted(nonce=nonce, array=array))


def snapshot_of(journal, *jobs):
    return take_snapshot(journal.run, journal, jobs)


def test_row_with_our_nonce_is_ours(journal):
    submit(journal, "n1", "5")
    assert [job.array for job in snapshot_of(journal, row("5", "opsctl:gpt:n1", name="renamed")).jobs] == ["5"]


def test_row_with_only_our_name_is_not_ours(journal):
    submit(journal, "n1", "5")
    assert snapshot_of(journal, row("6", "opsctl:gpt:other"), row("7", "")).jobs == ()


def test_row_with_nonce_of_another_train_is_not_ours(journal):
    submit(journal, "n1", "5")
    assert snapshot_of(journal, row("6", "opsctl:gpt2:n1")).jobs == ()


def test_our_id_with_another_comment_is_a_stranger(journal):
    submit(journal, "n1", "5")
    snapshot = snapshot_of(journal, row("5", "", name="theirs"))
    assert (snapshot.jobs, [job.name for job in snapshot.strangers]) == ((), ["theirs"])


def test_interrupted_submission_is_adopted(journal):
    journal.append(Submitting(nonce="n1", tasks=2, after=""))
    assert [job.array for job in snapshot_of(journal, row("5", "opsctl:gpt:n1")).adopted] == ["5"]


def test_oldest_array_comes_first(journal):
    submit(journal, "n1", "9")
    submit(journal, "n2", "10")
    rows = (row("10", "opsctl:gpt:n2"), row("9", "opsctl:gpt:n1", tasks=(2,)), row("9", "opsctl:gpt:n1", tasks=(1,)))
    assert [(job.array, job.tasks) for job in snapshot_of(journal, *rows).jobs] == [
        ("9", (1,)),
        ("9", (2,)),
        ("10", (1, 2)),
    ]


@pytest.mark.parametrize(
    ("states", "double"),
    [
        ((JobState.PENDING, JobState.PENDING), "8"),
        ((JobState.PENDING, JobState.RUNNING), "7"),
        ((JobState.RUNNING, JobState.PENDING), "8"),
    ],
)
def test_duplicate_submission_keeps_running_or_known_array(journal, states, double):
    submit(journal, "n1", "7")
    rows = [row(array, "opsctl:gpt:n1", state=state) for array, state in zip("78", states, strict=True)]
    snapshot = snapshot_of(journal, *rows)
    assert [job.array for job in snapshot.duplicates] == [double]


def test_unknown_duplicate_adopts_the_oldest_array(journal):
    journal.append(Submitting(nonce="n1", tasks=2, after=""))
    snapshot = snapshot_of(journal, row("10", "opsctl:gpt:n1"), row("9", "opsctl:gpt:n1"))
    assert ([job.array for job in snapshot.adopted], [job.array for job in snapshot.duplicates]) == (["9"], ["10"])


@pytest.mark.parametrize(*read_cases(__file__, "ended_array_is_not_queued", state=JobState))
def test_ended_array_is_not_queued(journal, state, queued):
    submit(journal, "n1", "5")
    assert snapshot_of(journal, row("5", "opsctl:gpt:n1", state=state)).is_queued is queued
