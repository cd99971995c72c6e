"""What was known of a node when something happened there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from opsctl.nodes.history import Card, Incident, NodeRecord
from opsctl.nodes.incident_summary import summarize_node, summarize_nodes
from tests.support.made_nodes import NOW

END = NOW.timestamp()
HOUR, DAY = 3600.0, 86400.0


def incident(at: float, last: float | None = None, *, check: str = "xid", node: str = "n1", **more: str) -> Incident:
    """Seen so many seconds from the end; before it is negative."""
    made = {"severity": "faulty", "evidence": "Xid 79", **more}
    return Incident(at=END + at, last=END + (at if last is None else last), count=1, node=node, check=check, **made)


def record(*incidents: Incident, looked: float = -HOUR, **more: object) -> NodeRecord:
    return replace(NodeRecord(node="n1", at=END + looked, incidents=incidents), **more)  # type: ignore[arg-type]  # fields


def told(node: NodeRecord, cards: dict[str, Sequence[Incident]] | None = None) -> list[str]:
    return summarize_node(node, cards or {}, at=NOW, days=28)


def test_findings_are_counted_by_check_within_the_days() -> None:
    incidents = [incident(-DAY), incident(-3 * DAY), incident(-9 * DAY, check="ecc"), incident(-29 * DAY, check="ecc")]
    assert told(record(*incidents, passed=(END - HOUR,), health="healthy")) == [
        "n1 has had 3 findings (xid 2, ecc 1) in the 28 days before"
    ]


def test_a_node_that_was_degraded_at_the_last_look_was_so_already() -> None:
    row = incident(-9 * HOUR, -3 * HOUR, check="remapped_rows", severity="degraded", evidence="1 pending", gpu="GPU-7")
    assert told(record(row, looked=-3 * HOUR)) == [
        "n1 has had 1 finding (remapped_rows 1) in the 28 days before",
        "n1 was already degraded, when looked at 3h before: remapped_rows: GPU-7 1 pending",
    ]


def test_what_was_found_before_and_after_was_there_at_the_end() -> None:
    assert told(record(incident(-5 * HOUR, 2 * HOUR), looked=2 * HOUR))[1] == (
        "n1 was already faulty, since 2026-11-20 07:00: xid: Xid 79"
    )


def test_what_was_passed_since_or_is_long_ago_while_others_have_looked_is_not_told_as_now() -> None:
    assert told(record(incident(-5 * HOUR), passed=(END - HOUR,)))[1:] == []
    assert told(record(incident(-5 * HOUR), cleared=END - HOUR))[1:] == []
    assert told(record(incident(-50 * HOUR)))[1:] == []
    assert len(told(record(incident(-50 * HOUR), looked=-50 * HOUR))) == 2


def test_what_was_found_only_afterwards_says_so() -> None:
    assert told(record(incident(120.0), incident(HOUR), looked=HOUR)) == ["n1, 2m after: xid: Xid 79"]


def test_the_same_card_is_known_under_another_nodes_name() -> None:
    card = Card(uuid="GPU-7", serial="s", bus="b", name="H100")
    there = [incident(-7 * DAY, node="cloud-3", gpu="GPU-7"), incident(-90 * DAY, node="cloud-3", gpu="GPU-7")]
    assert told(record(cards=(card,)), {"GPU-7": there}) == [
        "GPU-7 of n1 has had 1 finding (xid 1) as a card of cloud-3, the last on 2026-11-13 12:00: xid: GPU-7 Xid 79"
    ]
    assert told(record(cards=(card,)), {"GPU-7": [replace(each, node="n1") for each in there]}) == []


def test_without_a_cause_each_of_the_lifes_nodes_is_told_of() -> None:
    bad = record(incident(-HOUR), looked=-HOUR)
    well = [replace(record(health="healthy"), node=node) for node in ("n2", "n3")]
    since = replace(record(health="healthy", looked=HOUR), node="n5")
    assert summarize_nodes([*well, bad, NodeRecord(node="n4"), since], at=NOW) == [
        "n1 was already faulty, when looked at 1h before: xid: Xid 79",
        "health had found nothing wrong with n[2-3] then",
        "nobody had looked at n4; opsctl health n4",
    ]


def test_many_bad_nodes_are_cut_short() -> None:
    many = [replace(record(incident(-HOUR)), node=f"n{number}") for number in range(1, 10)]
    lines = summarize_nodes(many, at=NOW)
    assert (len(lines), lines[-1]) == (7, "so were n[7-9]")


@given(
    st.lists(st.tuples(st.floats(-9e6, 9e6), st.floats(0, 9e6)), max_size=6), st.lists(st.floats(-9e6, 9e6), max_size=3)
)
def test_nothing_is_said_to_have_been_there_already_that_was_first_seen_later(spans, passed) -> None:
    incidents = [incident(at, at + more) for at, more in spans]
    node = record(*incidents, passed=tuple(END + each for each in passed))
    if not any(each.at <= END for each in incidents):
        assert not [line for line in told(node) if "already" in line]
        assert summarize_nodes([node], at=NOW + timedelta(0)) in ([], ["health had found nothing wrong with n1 then"])
