"""The journal: append-only, tolerant of torn lines, replayed in order."""

import json
import logging
import os
import pwd
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from opsctl import __version__
from opsctl.base.errors import RunDirError
from opsctl.state.events import (
    KINDS,
    ArrayLost,
    AttemptEvent,
    AttemptStarted,
    Cancellation,
    Event,
    Excluded,
    Held,
    HoldReleased,
    SubmitRefused,
    Submitted,
    Submitting,
    UnknownEvent,
    cancels_train,
    parse_event,
    to_line,
)
from opsctl.state.journal import replay
from opsctl.state.reasons import Reason, ReasonKind, as_written
from tests.support.cases import read_cases

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def file_of(journal):
    return next(journal.run.journal.iterdir())


def add_line(journal, line):
    with (journal.run.journal / "other-1000.jsonl").open("ab") as file:
        file.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")


def old_line(kind, **data):
    """A line of a version whose events had neither a format nor reasons."""
    return {"n": 1, "at": AT.isoformat(), "actor": "me@h:1", "kind": kind, **data}


def test_every_kind_of_event_is_listed_once():
    bases = {Event, AttemptEvent, Cancellation}
    classes = {cls.__name__ for base in bases for cls in base.__subclasses__()}
    assert {cls.__name__ for cls in KINDS.values()} == classes - {base.__name__ for base in bases} - {"UnknownEvent"}


def test_event_that_could_not_be_read_back_is_refused(journal):
    with pytest.raises(ValueError, match="attempt: 'x'"):
        journal.append(AttemptStarted(attempt="x", nodes=""))
    assert journal.events() == []


def test_events_are_read_back_unchanged(journal):
    hold = Held(jobs=("1", "2"), reason=Reason(kind=ReasonKind.STANDSTILL, text='"; $(id)\n\x1e ü', step=7, count=3))
    excluded = Excluded(jobs=(), nodes="n1", until=AT)
    appended = [journal.append(hold), journal.append(HoldReleased(jobs=())), journal.append(excluded)]
    assert journal.events() == appended
    assert [(event.number, event.opsctl) for event in appended] == [(n, __version__) for n in (1, 2, 3)]


def test_torn_line_is_skipped(journal):
    journal.append(HoldReleased(jobs=("1",)))
    with file_of(journal).open("ab") as file:
        file.write(b'{"n": 2, "kind": "rele')
    journal.append(HoldReleased(jobs=("3",)))
    assert [event.jobs for event in journal.events()] == [("1",), ("3",)]


@pytest.mark.parametrize(*read_cases(__file__, "invalid_line_is_skipped", line=lambda text: text.encode("latin-1")))
def test_invalid_line_is_skipped(journal, line):
    journal.append(HoldReleased(jobs=("1",)))
    add_line(journal, line)
    assert len(journal.events()) == 1


def test_kind_of_a_newer_version_is_kept(journal):
    line = {**old_line("frozen", depth=7), "format": 2, "opsctl": "9.0"}
    add_line(journal, line)
    [event] = journal.events()
    assert event == UnknownEvent(
        number=1, at=AT.isoformat(), actor="me@h:1", opsctl="9.0", kind="frozen", extra={"depth": 7}
    )
    assert json.loads(to_line(event)) == {**line, "format": 1, "opsctl": "9.0"}


def test_field_of_a_newer_version_is_kept(journal):
    reason = {"kind": "eclipse", "moon": "new"}
    add_line(journal, {**old_line("held", jobs=["1"], reason=reason, until="dawn"), "format": 2, "opsctl": "9.0"})
    [event] = journal.events()
    assert (event.jobs, event.extra, event.reason.extra) == (("1",), {"until": "dawn"}, {"moon": "new"})
    assert str(event.reason) == "eclipse, a reason of a newer version of opsctl"
    written = json.loads(to_line(event))
    assert (written["until"], written["reason"]) == ("dawn", reason)


def test_known_kind_with_other_fields_in_a_newer_version_is_kept(journal):
    add_line(journal, {**old_line("released", jobs={"all": True}), "format": 2})
    assert [type(event) for event in journal.events()] == [UnknownEvent]


@pytest.mark.parametrize(*read_cases(__file__, "line_without_a_format_is_read", line=json.loads, event=json.loads))
def test_line_without_a_format_is_read(journal, line, event):
    add_line(journal, line)
    assert journal.events() == [parse_event(event)]


@pytest.mark.parametrize(*read_cases(__file__, "only_a_cancellation_of_all_arrays_cancels_the_train", event=json.loads))
def test_only_a_cancellation_of_all_arrays_cancels_the_train(event, is_whole_train):
    assert cancels_train(parse_event(event)) is is_whole_train


def test_journals_of_hosts_are_merged(journal):
    journal.append(HoldReleased(jobs=("1",)))
    event = {"n": 2, "at": "2020-01-01T00:00:00+00:00", "actor": "b", "kind": "released", "jobs": ["2"]}
    (journal.run.journal / "other-1000.jsonl").write_text(json.dumps(event) + "\n")
    journal.append(HoldReleased(jobs=("3",)))
    assert [event.jobs for event in journal.events()] == [("1",), ("2",), ("3",)]


def test_unwritable_journal_is_reported(journal):
    journal.run.journal.rmdir()
    with pytest.raises(RunDirError, match="No such file or directory"):
        journal.append(HoldReleased(jobs=()))


def history(*events):
    """Replay events in order."""
    return replay([replace(event, number=number, at=AT.isoformat()) for number, event in enumerate(events)])


SUBMITTING = Submitting(nonce="n1", tasks=7, after="")
SUBMITTED = Submitted(nonce="n1", array="5")
STARTED = AttemptStarted(attempt="5_1.0", nodes="node001")


def test_submission_is_pending_until_answered():
    assert list(history(SUBMITTING).pending) == ["n1"]
    assert not history(SUBMITTING, SUBMITTED).pending
    assert not history(SUBMITTING, SubmitRefused(nonce="n1", why="no")).pending


def test_array_has_the_submitted_number_of_tasks():
    assert history(SUBMITTING, SUBMITTED).arrays["5"].tasks == 7


def test_started_attempt_resolves_a_pending_submission():
    train_history = history(SUBMITTING, STARTED)
    assert (train_history.pending, train_history.arrays["5"].nonce, train_history.arrays["5"].tasks) == ({}, "n1", 7)


def test_attempt_started_before_the_submission_is_kept():
    train_history = history(SUBMITTING, STARTED, SUBMITTED)
    assert (train_history.pending, train_history.arrays["5"].tasks, list(train_history.started)) == ({}, 7, ["5_1.0"])


def test_attempt_of_a_known_array_resolves_nothing():
    resubmitting = Submitting(nonce="n2", tasks=1, after="5")
    assert list(history(SUBMITTING, SUBMITTED, resubmitting, STARTED).pending) == ["n2"]


def test_lost_array_is_removed():
    assert history(SUBMITTING, SUBMITTED, ArrayLost(array="5")).arrays == {}


def test_hold_ends_with_release_or_launch():
    hold = Held(jobs=("5",), reason=as_written("x"))
    assert history(hold).held is not None
    assert history(hold, HoldReleased(jobs=("5",))).held is None
    assert history(hold, SUBMITTING, SUBMITTED).held is None


def test_lone_surrogate_is_preserved(journal, caplog):
    """JSON from a team member can hold a lone surrogate, which UTF-8 cannot encode."""
    caplog.set_level(logging.DEBUG)
    journal.append(Held(jobs=(), reason=as_written("a\ud800b")))
    assert [str(event.reason) for event in journal.events()] == ["a\ud800b"]
    assert "a\\ud800b" in caplog.text
    caplog.text.encode()


def test_journal_is_readable_despite_the_umask(journal):
    before = os.umask(0o077)
    try:
        journal.append(HoldReleased(jobs=()))
    finally:
        os.umask(before)
    assert file_of(journal).stat().st_mode & 0o777 == 0o644


def test_actor_is_taken_from_the_user_id(journal, monkeypatch):
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    journal.append(HoldReleased(jobs=()))
    assert journal.events()[0].actor.startswith(f"{pwd.getpwuid(os.geteuid()).pw_name}@")
