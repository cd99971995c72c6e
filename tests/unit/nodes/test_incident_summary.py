"""Summaries of a node's history around the end of an attempt."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from opsctl.guard.node_evidence import summarize_node, summarize_nodes
from opsctl.nodes.health.node_state import Card
from opsctl.nodes.history import Incident, NodeRecord
from tests.support.made_nodes import NOW

END = NOW.timestamp()
HOUR, DAY = 3600.0, 86400.0


def incident(at: float, last: float | None = None, *, check: str = "xid", node: str = "n1", **fields: str) -> Incident:
    """Return an incident that checks found from `at` to `last`, in seconds after the end of the attempt."""
    fields = {"severity": "faulty", "evidence": "Xid 79", **fields}
    return Incident(at=END + at, last=END + (at if last is None else last), count=1, node=node, check=check, **fields)


def record(*incidents: Incident, checked: float = -HOUR, **fields: object) -> NodeRecord:
    return replace(NodeRecord(node="n1", at=END + checked, incidents=incidents), **fields)  # type: ignore[arg-type]  # fields of NodeRecord


def summarize(node: NodeRecord, cards: dict[str, Sequence[Incident]] | None = None) -> list[str]:
    return summarize_node(node, cards or {}, at=NOW, days=28)


def test_recent_findings_are_counted_by_check() -> None:
    incidents = [incident(-DAY), incident(-3 * DAY), incident(-9 * DAY, check="ecc"), incident(-29 * DAY, check="ecc")]
    assert summarize(record(*incidents, passed=(END - HOUR,), health="healthy")) == [
        "n1 has had 3 findings (xid 2, ecc 1) in the 28 days before"
    ]


def test_node_degraded_at_the_last_check_was_so_already() -> None:
    row = incident(-9 * HOUR, -3 * HOUR, check="remapped_rows", severity="degraded", evidence="1 pending", gpu="GPU-7")
    assert summarize(record(row, checked=-3 * HOUR)) == [
        "n1 has had 1 finding (remapped_rows 1) in the 28 days before",
        "n1 was already degraded, at the check 3h before: remapped_rows: GPU-7 1 pending",
    ]


def test_fault_found_before_and_after_was_there_at_the_end() -> None:
    assert summarize(record(incident(-5 * HOUR, 2 * HOUR), checked=2 * HOUR))[1] == (
        "n1 was already faulty, since 2026-11-20 07:00: xid: Xid 79"
    )


def test_passed_or_outdated_fault_is_not_current() -> None:
    assert summarize(record(incident(-5 * HOUR), passed=(END - HOUR,)))[1:] == []
    assert summarize(record(incident(-5 * HOUR), cleared=END - HOUR))[1:] == []
    assert summarize(record(incident(-50 * HOUR)))[1:] == []
    assert len(summarize(record(incident(-50 * HOUR), checked=-50 * HOUR))) == 2


def test_fault_found_after_the_end_says_so() -> None:
    assert summarize(record(incident(120.0), incident(HOUR), checked=HOUR)) == ["n1, 2m after: xid: Xid 79"]


def test_gpu_is_recognized_under_another_node_name() -> None:
    card = Card(uuid="GPU-7", serial="s", bus="b", name="H100")
    there = [incident(-7 * DAY, node="cloud-3", gpu="GPU-7"), incident(-90 * DAY, node="cloud-3", gpu="GPU-7")]
    assert summarize(record(cards=(card,)), {"GPU-7": there}) == [
        "GPU-7 of n1 has had 1 finding (xid 1) in node cloud-3, the last on 2026-11-13 12:00: xid: GPU-7 Xid 79"
    ]
    assert summarize(record(cards=(card,)), {"GPU-7": [replace(incident, node="n1") for incident in there]}) == []


def test_without_a_cause_every_node_is_described() -> None:
    bad = record(incident(-HOUR), checked=-HOUR)
    well = [replace(record(health="healthy"), node=node) for node in ("n2", "n3")]
    since = replace(record(health="healthy", checked=HOUR), node="n5")
    assert summarize_nodes([*well, bad, NodeRecord(node="n4"), since], at=NOW) == [
        "n1 was already faulty, at the check 1h before: xid: Xid 79",
        "healthy at the last check before: n[2-3]",
        "no health check is stored of n4",
    ]


def test_long_list_of_bad_nodes_is_cut() -> None:
    many = [replace(record(incident(-HOUR)), node=f"n{number}") for number in range(1, 10)]
    lines = summarize_nodes(many, at=NOW)
    assert (len(lines), lines[-1]) == (7, "also faulty or degraded: n[7-9]")


@given(
    st.lists(st.tuples(st.floats(-9e6, 9e6), st.floats(0, 9e6)), max_size=6), st.lists(st.floats(-9e6, 9e6), max_size=3)
)
def test_later_fault_is_never_called_earlier(spans, passed) -> None:
    incidents = [incident(at, at + more) for at, more in spans]
    node = record(*incidents, passed=tuple(END + seconds for seconds in passed))
    if not any(incident.at <= END for incident in incidents):
        assert not [line for line in summarize(node) if "already" in line]
        assert summarize_nodes([node], at=NOW + timedelta(0)) in ([], ["healthy at the last check before: n1"])
