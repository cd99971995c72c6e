"""One cause, one message: what follows from a bad node, and what happens to one train at once."""

from opsctl.alerts import dispatch
from opsctl.base.findings import Severity
from tests.unit.alerts.conftest import finding

LOG = {"file": {"kind": "file", "path": "{path}"}}


def down(train, severity=Severity.CRITICAL):
    return finding(severity, f"node_health/{train}/n3", summary=f"n3 is DOWN under {train}", train=train, node="n3")


def excluded(train):
    key = f"failures/{train}/7_1.0"
    says = f"{train} continues without n3"
    return finding(Severity.WARNING, key, summary=says, train=train, node="n3", is_certain=True)


def healthy(sick):
    return finding(Severity.OK, sick.key, summary="well", train=sick.train, node=sick.node)


def read_subjects(world):
    path = world.site.alerts / "alerts.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.partition("] ")[2] for line in lines if line.startswith("20")]


def run_cycle(world, *findings):
    world.ledger.record(findings)
    dispatch.send_alerts(world.alerting)
    world.clock.forward(minutes=10)


def test_crashed_node_with_two_trains_is_one_alert(world):
    run_cycle(world, down("a"), down("b"))
    run_cycle(world, down("a"), down("b"), excluded("a"), excluded("b"))
    run_cycle(world, down("a", Severity.WARNING), excluded("a"), excluded("b"))
    run_cycle(world, healthy(down("a")), excluded("a"), excluded("b"))
    run_cycle(world, healthy(down("a")), healthy(excluded("a")), healthy(excluded("b")))
    assert read_subjects(world) == [
        "CRITICAL: n3 is DOWN under a; also hit: b",
        "BETTER: WARNING: n3 is DOWN under a; also hit: b",
        "RESOLVED: a: well",
    ]


def test_hang_on_a_dead_node_is_withheld_for_an_hour(world):
    hung = finding(Severity.CRITICAL, "hang/a", summary="a hangs", train="a")
    for _ in range(6):
        run_cycle(world, down("a"), hung)
    assert read_subjects(world) == ["CRITICAL: n3 is DOWN under a"]
    run_cycle(world, down("a"), hung)
    assert sorted(read_subjects(world)[1:]) == ["CRITICAL: a hangs", "STILL CRITICAL: n3 is DOWN under a"]


def test_hang_that_outlives_the_cause_is_sent(world):
    hung = finding(Severity.CRITICAL, "hang/a", summary="a hangs", train="a")
    run_cycle(world, down("a"), hung)
    run_cycle(world, healthy(down("a")), hung)
    assert sorted(read_subjects(world)[1:]) == ["CRITICAL: a hangs", "RESOLVED: a: well"]


def test_held_train_is_alerted_beside_its_node(world):
    held = finding(Severity.CRITICAL, "failures/a/7_1.0", summary="a is held", train="a", node="n3", is_certain=True)
    run_cycle(world, down("b"), held)
    assert sorted(read_subjects(world)) == ["CRITICAL: a is held", "CRITICAL: n3 is DOWN under b"]


def test_team_of_another_channel_gets_its_own_alert(with_rules, tmp_path):
    channels = {name: {"kind": "file", "path": str(tmp_path / name)} for name in "ab"}
    routes = tuple({"channels": (name,), "trains": (name,)} for name in "ab")
    run_cycle(with_rules(channels=channels, routes=routes), down("a"), down("b"))
    assert "n3 is DOWN under a" in (tmp_path / "a").read_text()
    assert "n3 is DOWN under b" in (tmp_path / "b").read_text()


def test_changes_of_one_train_are_one_message(world):
    slow = finding(Severity.WARNING, "throughput/a", summary="a is slow", train="a", is_certain=True)
    worse = finding(Severity.CRITICAL, "loss/a", summary="a diverges", train="a")
    other = finding(Severity.CRITICAL, "loss/b", summary="b diverges", train="b")
    run_cycle(world, slow, worse, other)
    assert sorted(read_subjects(world)) == ["CRITICAL: a diverges (and 1 more)", "CRITICAL: b diverges"]
    assert "Also\n      WARNING: a is slow (throughput/a)" in (world.site.alerts / "alerts.log").read_text()
    run_cycle(world, healthy(slow), healthy(worse), other)
    assert read_subjects(world)[2:] == ["RESOLVED: a: well (and 1 more)"]
