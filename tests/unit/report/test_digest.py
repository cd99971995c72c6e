"""The digest, as text and as Markdown."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from opsctl.report.digest import MAX_ACTIONS, Digest, TrainDigest, list_actions, render, render_subject
from opsctl.state.events import AttemptFinalized, HoldReleased
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
    losses=((Bucket.QUEUE, 7200.0),),
    actions=("2026-03-02 03:00 UTC: excluded n3 until 2026-03-03 03:00: GPU fell off the bus",),
)
DIGEST = Digest(
    site="jz",
    since=NOON - timedelta(days=1),
    made=NOON,
    trains=(TRAIN,),
    alerts=("critical since 2026-03-02 11:00 UTC: tr11 hangs (hang/tr11)",),
    acknowledged=("warning since 2026-03-01 09:00 UTC: 90 % (fs_quota/work); acknowledged by anna: on it",),
    disks=("work: 90.00% bytes usage",),
    nodes=("n3: DOWN: no heartbeat",),
)


def test_digest_as_text():
    assert (
        render(DIGEST)
        == """\
[jz] Digest since 2026-03-01 12:00 UTC: 1 running; 1 open alert

tr11: running, step 12,000 of 50,000, about 900 of them new
  loss: 2.5
  effective time: 90.0% of 1d
  lost to queue: 2.0 h
  opsctl: 2026-03-02 03:00 UTC: excluded n3 until 2026-03-03 03:00: GPU fell off the bus

Open alerts
  critical since 2026-03-02 11:00 UTC: tr11 hangs (hang/tr11)

Acknowledged alerts
  warning since 2026-03-01 09:00 UTC: 90 % (fs_quota/work); acknowledged by anna: on it

Disks
  work: 90.00% bytes usage

Nodes out of service
  n3: DOWN: no heartbeat
"""
    )


def test_digest_as_markdown_has_headings_and_items():
    lines = render(DIGEST, is_markdown=True).splitlines()
    assert lines[0] == f"# {render_subject(DIGEST)}"
    assert "## Open alerts" in lines
    assert "- loss: 2.5" in lines


def test_actions_since_a_time_are_listed_with_reasons():
    def make(number, at, event):
        return replace(event, number=number, at=at.isoformat(), actor="anna@login")

    ended = {"attempt": "7_1.0", "outcome": "hung", "action": "continue", "why": "no step for 20 min"}
    events = [
        make(1, NOON - timedelta(days=2), AttemptFinalized(**ended)),
        make(2, NOON, AttemptFinalized(**ended)),
        make(3, NOON, HoldReleased(jobs=("7",))),
    ]
    assert list_actions(events, NOON - timedelta(days=1)) == (
        "2026-03-02 12:00 UTC: 7_1.0 hung, continue: no step for 20 min",
    )
    many = list_actions([make(n, NOON, AttemptFinalized(**ended)) for n in range(30)], NOON)
    assert len(many) == MAX_ACTIONS + 1
    assert many[0] == "10 earlier actions"
