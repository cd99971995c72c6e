"""What a reader of the journal reads: each line once, and a snapshot in place of old attempts."""

from datetime import UTC, datetime, timedelta

import pytest

from opsctl.host.system import SystemClock
from opsctl.state.events import (
    AttemptFinalized,
    AttemptStarted,
    ExclusionDecided,
    Held,
    HoldReleased,
    Submitting,
    to_line,
)
from opsctl.state.journal import RECENT_ATTEMPTS, Journal, replay
from opsctl.state.reasons import as_written
from tests.support.made_events import make_diagnosed

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_journal_reads_each_line_once(journal):
    journal.append(HoldReleased(jobs=("1",)))
    other = journal.run.journal / "other-1000.jsonl"
    line = to_line(HoldReleased(number=2, at=AT.isoformat(), actor="b", jobs=("2",)))
    other.write_bytes(line[:20])  # as while another host writes
    assert [event.jobs for event in journal.events()] == [("1",)]
    with other.open("ab") as file:
        file.write(line[20:])
    assert [event.jobs for event in journal.events()] == [("1",), ("2",)]
    with other.open("r+b") as file:
        file.write(b"#")  # a second reading of this line would find no event
    assert [event.jobs for event in journal.events()] == [("1",), ("2",)]


def test_number_follows_the_ends_of_the_files(journal):
    long_text = as_written("x" * 200_000)
    line = to_line(Held(number=41, at=AT.isoformat(), actor="b", jobs=(), reason=long_text))
    (journal.run.journal / "other-1000.jsonl").write_bytes(line)
    assert journal.append(HoldReleased(jobs=())).number == 42


def run_attempts(journal, numbers):
    """Journal a start, a diagnosis and an end for each number, as a guard does."""
    for number in numbers:
        attempt = f"{number}_1.0"
        journal.append(AttemptStarted(attempt=attempt, nodes="n1"))
        journal.append(make_diagnosed(attempt=attempt, cause="gpu" if number % 3 else ""))
        journal.append(AttemptFinalized(attempt=attempt, outcome="failed", action="continue", why="w"))
        journal.leave_out_old()


@pytest.fixture
def long_journal(journal):
    """A journal of so many attempts that a snapshot stands for the old ones."""
    journal.append(Submitting(nonce="a", tasks=500, after=""))
    run_attempts(journal, [1])
    until, reason = datetime.now(UTC) + timedelta(days=9), as_written("gpu")
    journal.append(ExclusionDecided(attempt="1_1.0", nodes="n7", until=until, excluded=True, reason=reason, done=()))
    run_attempts(journal, range(2, 2 * RECENT_ATTEMPTS + 5))
    return journal


def test_snapshot_stands_for_old_attempts(long_journal):
    everything = replay(long_journal.all_events())
    for reader in (long_journal, Journal(long_journal.run, SystemClock())):
        seen = replay(reader.events())
        assert len(seen.left_out) >= RECENT_ATTEMPTS
        assert seen.attempts == list(everything.started)
        assert set(seen.count_ends()) == set(everything.count_ends())
        assert (seen.arrays.keys(), seen.pending) == (everything.arrays.keys(), everything.pending)
        assert [event.nodes for event in reader.events() if isinstance(event, ExclusionDecided)] == ["n7"]
    assert len(long_journal.events()) < 4 * RECENT_ATTEMPTS < len(long_journal.all_events())


def test_attempt_may_start_again_after_it_was_left_out(long_journal):
    long_journal.append(AttemptStarted(attempt="1_1.0", nodes="n2"))
    history_now = replay(long_journal.events())
    assert ("1_1.0" in history_now.started, history_now.attempts.count("1_1.0")) == (True, 1)


@pytest.mark.parametrize("damage", ["other file", "garbage", "shorter file"])
def test_snapshot_that_does_not_fit_its_files_is_not_used(long_journal, damage):
    path, snapshot = next(long_journal.run.journal.glob("*.jsonl")), long_journal.run.journal / "snapshot.json"
    if damage == "garbage":
        snapshot.write_text('{"files": {}, "events": [7]}')
    else:
        lines = path.read_bytes().splitlines(keepends=True)
        path.rename(path.with_suffix(".aside"))  # whose inode stays taken
        path.write_bytes(b"".join(lines if damage == "other file" else lines[:9]))
    assert Journal(long_journal.run, SystemClock()).events() == long_journal.all_events()
