"""The digest: what comes first, and what is left out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.report.digest import MAX_ACTIONS, Digest, TrainDigest, list_actions, render
from opsctl.state.events import AttemptFinalized, Diagnosed, Event, HoldReleased, Readmitted
from opsctl.telemetry.progress.effective_time import Bucket

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
TRAIN = TrainDigest(
    train="tr11",
    state="running",
    step=12000,
    last_step=50000,
    steps_done=900,
    loss=2.5,
    wall_s=86400.0,
    effective_share=0.9,
    losses=((Bucket.QUEUE, 7200.0), (Bucket.START_UP, 800.0), (Bucket.CHECKPOINT, 400.0), (Bucket.SLOW, 240.0)),
    end=NOON + timedelta(days=18),
    end_range=(NOON + timedelta(days=16), NOON + timedelta(days=23)),
    actions=("2026-03-02 03:00: excluded n3 until 2026-03-03 03:00: GPU fell off the bus",),
)
DIGEST = Digest(
    site="jz",
    since=NOON - timedelta(days=1),
    made=NOON,
    trains=(TRAIN, TrainDigest(train="tr12", state="ended", problem="the log cannot be read")),
    alerts=("critical since 2026-03-02 11:00: tr11 hangs (hang/tr11); opsctl status tr11",),
    acknowledged=("warning since 2026-03-01 09:00: 90 % (fs_quota/work); acknowledged by anna: on it",),
    disks=("work: 90.0 % of the space used",),
    nodes=("n3: DOWN: no heartbeat",),
)


def test_digest_leads_with_a_paragraph_a_table_and_decisions() -> None:
    assert render(DIGEST) == Path(__file__).with_name("digest.md").read_text(encoding="utf-8")


def test_quiet_digest_is_short() -> None:
    quiet = replace(TRAIN, losses=((Bucket.SLOW, 100.0),), end=None, actions=())
    text = render(replace(DIGEST, trains=(quiet,), alerts=(), acknowledged=(), disks=(), nodes=()))
    assert "Nothing needs a decision." in text
    assert "0.0 h" not in text
    assert "##" not in text


@pytest.mark.parametrize(
    ("hours", "shown"),
    [((7, 7, 7), "2026-03-02 19:00"), ((7, 6, 9), "2026-03-02 19:00 (2026-03-02 18:00 to 2026-03-02 21:00)")],
)
def test_near_end_has_a_time_and_no_range_of_one_moment(hours: tuple[int, int, int], shown: str) -> None:
    end, early, late = (NOON + timedelta(hours=number) for number in hours)
    text = render(replace(DIGEST, trains=(replace(TRAIN, end=end, end_range=(early, late)),)))
    assert f"  {shown}  " in text


def make(number: int, at: datetime, event: Event) -> Event:
    return replace(event, number=number, at=at.isoformat(), actor="anna@login")


def end(number: int, at: datetime, step: int = 120) -> list[Event]:
    """Return the events of an attempt that crashed: its diagnosis and its end."""
    why = f"KeyError: 'x{step}' in data.py, and much more of a line that a trainer prints when it gives up; " * 2
    name = f"7_{number}.0"
    diagnosis = dict.fromkeys(("cause_kind", "says", "node", "advice"), "") | {"cause": "key-error", "rank": None}
    empty = dict.fromkeys(("suspects", "evidence", "also"), ())
    ended = AttemptFinalized(attempt=name, outcome="crashed", action="continue", why=why + "; goes on", exit_why=why)
    return [
        make(2 * number, at, Diagnosed(attempt=name, **diagnosis, **empty)),  # type: ignore[arg-type]
        make(2 * number + 1, at, ended),
    ]


def test_actions_since_a_time_are_listed_with_reasons() -> None:
    hung = AttemptFinalized(attempt="7_1.0", outcome="hung", action="continue", why="no step for 20 min")
    events = [
        make(1, NOON - timedelta(days=2), hung),
        make(2, NOON, hung),
        make(3, NOON, HoldReleased(jobs=("7",))),
    ]
    assert list_actions(events, NOON - timedelta(days=1)) == (
        "2026-03-02 12:00: 7_1.0 hung, continue: no step for 20 min",
    )
    many = [make(n, NOON, Readmitted(nodes=f"n{n}", jobs=())) for n in range(30)]
    actions = list_actions(many, NOON)
    assert (len(actions), actions[0]) == (MAX_ACTIONS + 1, "10 earlier actions")


def test_ends_with_one_cause_are_one_line() -> None:
    events = [event for number in range(4) for event in end(number, NOON, step=120 + number)]
    (line,) = list_actions(events, NOON)
    assert line.startswith("2026-03-02 12:00: 7_3.0 crashed, continue: KeyError: 'x123' in data.py")
    assert line.endswith("… (4 such ends)")
    assert len(line) < 200
