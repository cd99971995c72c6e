"""Job comments are public: a copy in another user's job is not the train's."""

import os

import pytest

from opsctl.base.model import Job, JobState
from opsctl.host.system import SystemClock, user_name
from opsctl.launch.train_arrays import TrainArrays, take_snapshot
from opsctl.monitor.status import read_status
from opsctl.state.events import Submitting
from opsctl.state.journal import Journal
from opsctl.state.reasons import as_written
from tests.support.finalized_trains import QueuedTrain


def copied(train: QueuedTrain, **more) -> Job:
    row = Job(
        id="66", array="66", tasks=(1, 2), name="gpt", user="mallory", state=JobState.PENDING, reason="JobHeldUser",
        comment="opsctl:gpt:n1",
    )  # fmt: skip
    for key, value in more.items():
        object.__setattr__(row, key, value)
    train.queue.rows.append(row)
    return row


@pytest.mark.attack("a copied comment makes hold, release, cancel and exclude fail")
def test_copied_comment_is_ignored(train):
    copied(train)
    assert train.arrays.hold(as_written("x")) == ["12"]
    assert train.arrays.release() == ["12"]
    assert train.arrays.exclude("node001", needed=2) == "node001"
    assert list(train.queue.excludes) == ["12"]
    assert train.arrays.cancel(as_written("x")) == ["12"]
    assert [row.array for row in train.queue.rows] == ["66"]


@pytest.mark.attack("a copied comment hides that nothing is queued")
def test_copied_comment_is_no_queue(train):
    train.queue.rows.clear()
    copied(train)
    snapshot = train.arrays.check()
    assert not snapshot.is_queued
    status = read_status(train.run, train.arrays.journal, train.queue.rows, train.clock.now())
    assert status.state != "held"
    assert "job 66_1 of mallory carries a copy of this train's comment and is ignored" in status.notes


@pytest.mark.attack("a copied comment is adopted as a cut-off submission")
def test_copied_comment_is_not_adopted(train):
    train.arrays.journal.append(Submitting(nonce="n2", tasks=3, after=""))
    copied(train, comment="opsctl:gpt:n2")
    assert train.arrays.check().adopted == ()
    assert "66" not in {getattr(event, "array", "") for event in train.arrays.journal.events()}


@pytest.mark.attack("a copied comment makes our array a duplicate that is cancelled")
def test_copied_comment_makes_no_duplicate(train):
    copied(train, id="5", array="5", state=JobState.RUNNING, tasks=(1,))
    assert train.arrays.drop_duplicates(train.arrays.check()) == []
    assert train.arrays.hold(as_written("x")) == ["12"]


def test_row_whose_user_slurm_cannot_name_is_ours_by_its_array(train):
    for user in ("nobody", "", str(os.geteuid())):
        for row in train.queue.rows:
            object.__setattr__(row, "user", user)
        assert [job.array for job in train.arrays.check().jobs] == ["12"]


def test_team_member_sees_the_owners_rows(train, monkeypatch):
    if os.geteuid() == 0:
        os.chown(train.run.path, 1, 1)
        for row in train.queue.rows:
            object.__setattr__(row, "user", user_name(1))
    journal = Journal(train.run, SystemClock())
    snapshot = take_snapshot(train.run, journal, train.queue.rows)
    assert [job.array for job in snapshot.jobs] == ["12"]
    assert isinstance(train.arrays, TrainArrays)
