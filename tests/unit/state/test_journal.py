"""The journal: append-only, tolerant of torn lines, replayed in order."""

import json
import logging
import os
import pwd
from datetime import UTC, datetime

import pytest

from opsctl.base.errors import RunDirError
from opsctl.host.system import SystemClock
from opsctl.state.journal import FIELDS, Event, EventKind, Journal, replay
from opsctl.state.run_dir import RunDir

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def journal(tmp_path):
    run = RunDir(tmp_path / "gpt")
    run.create()
    return Journal(run, SystemClock())


def file_of(journal):
    return next(journal.run.journal.iterdir())


def test_every_kind_has_fields():
    assert set(FIELDS) == set(EventKind)


def test_event_with_a_missing_field_is_refused(journal):
    with pytest.raises(ValueError, match=r"held: carries \['jobs'\], needs \['jobs', 'why'\]"):
        journal.append(EventKind.HELD, jobs=["1"])
    assert journal.events() == []


def test_events_are_read_back_unchanged(journal):
    journal.append(EventKind.HELD, jobs=["1", "2"], why='"; $(id)\n\x1e ü')
    journal.append(EventKind.RELEASED, jobs=[])
    assert [(e.number, e.kind, e.data) for e in journal.events()] == [
        (1, EventKind.HELD, {"jobs": ["1", "2"], "why": '"; $(id)\n\x1e ü'}),
        (2, EventKind.RELEASED, {"jobs": []}),
    ]


def test_torn_line_is_skipped(journal):
    journal.append(EventKind.RELEASED, jobs=["1"])
    with file_of(journal).open("ab") as file:
        file.write(b'{"n": 2, "kind": "rele')
    journal.append(EventKind.RELEASED, jobs=["3"])
    assert [event.data["jobs"] for event in journal.events()] == [["1"], ["3"]]


@pytest.mark.parametrize(
    "line",
    [b"", b"null", b"[]", b"1", b'{"n": 1}', b'{"n":1,"at":"x","actor":"a","kind":"of-a-later-version"}', b"\xff"],
)
def test_invalid_line_is_skipped(journal, line):
    journal.append(EventKind.RELEASED, jobs=["1"])
    with file_of(journal).open("ab") as file:
        file.write(line + b"\n")
    assert len(journal.events()) == 1


def test_journals_of_hosts_are_merged(journal):
    journal.append(EventKind.RELEASED, jobs=["1"])
    event = {"n": 2, "at": "2020-01-01T00:00:00+00:00", "actor": "b", "kind": "released", "jobs": ["2"]}
    (journal.run.journal / "other-1000.jsonl").write_text(json.dumps(event) + "\n")
    journal.append(EventKind.RELEASED, jobs=["3"])
    assert [event.data["jobs"] for event in journal.events()] == [["1"], ["2"], ["3"]]


def test_unwritable_journal_is_reported(journal):
    journal.run.journal.rmdir()
    with pytest.raises(RunDirError, match="No such file or directory"):
        journal.append(EventKind.RELEASED, jobs=[])


def history(*steps):
    """Replay `(kind, data)` pairs in order."""
    return replay(
        [Event(number=n, at=AT.isoformat(), actor="a", kind=kind, data=data) for n, (kind, data) in enumerate(steps)]
    )


SUBMITTING = (EventKind.SUBMITTING, {"nonce": "n1", "tasks": 7, "after": ""})
SUBMITTED = (EventKind.SUBMITTED, {"nonce": "n1", "array": "5"})
STARTED = (EventKind.ATTEMPT_STARTED, {"attempt": "5_1.0", "nodes": "node001"})


def test_submission_is_pending_until_answered():
    assert list(history(SUBMITTING).pending) == ["n1"]
    assert not history(SUBMITTING, SUBMITTED).pending
    assert not history(SUBMITTING, (EventKind.SUBMIT_REFUSED, {"nonce": "n1", "why": "no"})).pending


def test_array_has_the_submitted_number_of_tasks():
    assert history(SUBMITTING, SUBMITTED).arrays["5"].tasks == 7


def test_started_attempt_resolves_a_pending_submission():
    train_history = history(SUBMITTING, STARTED)
    assert (train_history.pending, train_history.arrays["5"].nonce, train_history.arrays["5"].tasks) == ({}, "n1", 7)


def test_attempt_started_before_the_submission_is_kept():
    train_history = history(SUBMITTING, STARTED, SUBMITTED)
    assert (train_history.pending, train_history.arrays["5"].tasks, list(train_history.started)) == ({}, 7, ["5_1.0"])


def test_attempt_of_a_known_array_resolves_nothing():
    resubmitting = (EventKind.SUBMITTING, {"nonce": "n2", "tasks": 1, "after": "5"})
    assert list(history(SUBMITTING, SUBMITTED, resubmitting, STARTED).pending) == ["n2"]


def test_lost_array_is_removed():
    assert history(SUBMITTING, SUBMITTED, (EventKind.ARRAY_LOST, {"array": "5"})).arrays == {}


def test_hold_ends_with_release_or_launch():
    hold = (EventKind.HELD, {"jobs": ["5"], "why": "x"})
    assert history(hold).held is not None
    assert history(hold, (EventKind.RELEASED, {"jobs": ["5"]})).held is None
    assert history(hold, SUBMITTING, SUBMITTED).held is None


def test_attempts_are_listed_by_array():
    attempts = [
        (EventKind.ATTEMPT_STARTED, {"attempt": attempt, "nodes": ""})
        for attempt in ("5_1.0", "5_1.1", "55_1.0", "5.0")
    ]
    assert history(*attempts).attempts_of("5") == ["5_1.0", "5_1.1", "5.0"]


def test_lone_surrogate_is_preserved(journal, caplog):
    """JSON from a team member can hold a lone surrogate, which UTF-8 cannot encode."""
    caplog.set_level(logging.DEBUG)
    journal.append(EventKind.HELD, jobs=[], why="a\ud800b")
    assert [event.data["why"] for event in journal.events()] == ["a\ud800b"]
    assert "a\\ud800b" in caplog.text
    caplog.text.encode()


def test_journal_is_readable_despite_the_umask(journal):
    before = os.umask(0o077)
    try:
        journal.append(EventKind.RELEASED, jobs=[])
    finally:
        os.umask(before)
    assert file_of(journal).stat().st_mode & 0o777 == 0o644


def test_actor_is_taken_from_the_user_id(journal, monkeypatch):
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    journal.append(EventKind.RELEASED, jobs=[])
    assert journal.events()[0].actor.startswith(f"{pwd.getpwuid(os.geteuid()).pw_name}@")
