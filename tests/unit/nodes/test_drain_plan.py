"""Plans to drain, reboot and undrain nodes; two drains at a time keep to one cap."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from opsctl.base.errors import InputError
from opsctl.base.model import DrainReason, Node
from opsctl.host.system import SystemClock
from opsctl.nodes.drain import Quarantine
from opsctl.nodes.drain_plan import (
    NodePlan,
    Step,
    busy_by_node,
    compute_cap,
    find_amended,
    has_changed,
    is_listed,
    plan_drain,
    plan_reboot,
    plan_undrain,
)
from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.health.node_state import Verdict
from opsctl.nodes.history import NodeHistory, NodeRecord
from opsctl.settings.health import HealthSettings
from opsctl.state.site_dir import SiteDir
from tests.support.cases import read_cases
from tests.support.made_nodes import NOW, judge_snapshot, make_snapshot, render_smi, render_stat

OURS = "opsctl: xid: 79"


def node(name: str, state: str = "IDLE", reason: str = "") -> Node:
    return Node(name=name, state=state, address="", reason=reason)


def cluster(size: int, **states: tuple[str, str]) -> list[Node]:
    names = [f"node{number:03}" for number in range(1, size + 1)]
    return [node(name, *states.get(name, ("IDLE", ""))) for name in names]


def bad(name: str, **changes: str) -> Verdict:
    return judge_snapshot(make_snapshot(node=name, smi=render_smi(**(changes or {"failure": "Yes"}))))


def plan(verdicts: list[Verdict], nodes: list[Node], **options):
    return plan_drain(verdicts, nodes, HealthSettings(), scores=options.pop("scores", {}), **options)


def test_reason_names_check_gpu_and_evidence() -> None:
    (step,) = plan([bad("node001")], cluster(100)).steps
    assert step.reason == "opsctl: remapped_rows: GPU-made-3 a row could not be remapped"


def test_reason_is_one_line_without_quotes() -> None:
    line = "NVRM: Xid (PCI:0000:13:00): 79, pid=\"1\" name=`x`\t'é' GPU has fallen off the bus." + "x" * 300
    (step,) = plan([judge_snapshot(make_snapshot(node="node001", kernel=line))], cluster(100)).steps
    assert not set(step.reason) & set("\"'`\n\té")
    assert len(step.reason) <= 200


def test_unknown_and_healthy_nodes_are_not_drained() -> None:
    unknown = judge_snapshot(make_snapshot(node="node001", smi=(124, "")))
    assert plan([unknown, judge_snapshot(make_snapshot(node="node002"))], cluster(100)).steps == ()


def test_worst_nodes_are_drained_first() -> None:
    verdicts = [
        bad("node001", pending="Yes"),
        bad("node002"),
        bad("node003"),
        judge_snapshot(make_snapshot(node="node004")),
    ]
    steps = plan(verdicts, cluster(100), scores={"node003": 9.0}).steps
    assert [step.node for step in steps] == ["node003", "node002", "node001"]


def test_cap_includes_nodes_that_are_already_out() -> None:
    verdicts = [bad(f"node{number:03}") for number in range(1, 8)]
    node_plan = plan(verdicts, cluster(100, node090=("IDLE+DRAIN", OURS), node091=("DRAINED", "bad fan")))
    assert len(node_plan.steps) == 3
    assert node_plan.left[0].why == "beyond the cap of 4 nodes that opsctl takes out at once"
    assert len(plan(verdicts, cluster(20)).steps) == 1
    assert len(plan(verdicts, cluster(4)).steps) == 1
    assert plan(verdicts, cluster(100), most="0").steps == ()
    assert len(plan(verdicts, cluster(100), most="2%").steps) == 2
    assert len(plan(verdicts, cluster(100), most="50").steps) == 4
    assert len(plan(verdicts, cluster(100), excluded=frozenset({"node050", "node051"})).steps) == 2


@pytest.mark.parametrize("text", ["x", "-1", "5 %", "1.5", "٣"])
def test_invalid_cap_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is neither a number nor a percentage"):
        compute_cap(HealthSettings(), 10, text)


def test_node_that_others_drained_is_left_alone() -> None:
    nodes = cluster(100, node001=("IDLE+DRAIN", "bad fan"), node002=("DRAINED", OURS), node003=("DOWN*", ""))
    node_plan = plan([bad("node001"), bad("node002"), bad("node003"), bad("gone")], nodes)
    assert node_plan.steps == ()
    assert {skipped.node: skipped.why for skipped in node_plan.left} == {
        "node001": "is IDLE+DRAIN, not by opsctl: bad fan",
        "node002": "is drained already: opsctl: xid: 79",
        "node003": "is DOWN*, not by opsctl: no reason given",
        "gone": "Slurm does not list the node",
    }


def test_train_that_no_longer_fits_is_noted() -> None:
    wants = {"big": 64, "small": 62}
    node_plan = plan([bad("node001"), bad("node002")], cluster(64), demands=wants)
    assert node_plan.notes == ("big's 64 nodes no longer fit: 62 left",)


def test_changed_node_is_not_touched() -> None:
    (step,) = plan([bad("node001")], cluster(100)).steps
    assert has_changed(step, node("node001")) == ""
    assert has_changed(step, node("node001", "ALLOCATED")) == ""
    assert has_changed(step, node("node001", "IDLE+DRAIN", "x")) == "has changed since: IDLE+DRAIN, x"
    assert has_changed(step, None) == "Slurm no longer lists the node"


@pytest.mark.parametrize(*read_cases(__file__, "node_state_tells_whether_it_has_a_job"))
def test_node_state_tells_whether_it_has_a_job(state, expected) -> None:
    assert busy_by_node([node("n", state)]).get("n") is expected


def undrain(verdict: Verdict, snapshot, record: NodeRecord, *nodes: Node, since: float = 0.0, gap: float = 60):
    site = HealthSettings(undrain_gap_seconds=gap)
    return plan_undrain(
        [verdict],
        list(nodes),
        site,
        records={record.node: record},
        snapshots={snapshot.node: snapshot},
        since={record.node: since},
    )


def test_drained_node_is_undrained_after_two_checks() -> None:
    snapshot, at = make_snapshot(), NOW.timestamp()
    ours = node("node001", "IDLE+DRAIN", OURS)
    twice, once = NodeRecord(node="node001", passed=(at, at + 61)), NodeRecord(node="node001", passed=(at + 61,))
    assert [step.node for step in undrain(judge_snapshot(snapshot), snapshot, twice, ours).steps] == ["node001"]
    (left,) = undrain(judge_snapshot(snapshot), snapshot, once, ours).left
    assert left.why == "has passed one health check; check again after 1m"
    assert undrain(judge_snapshot(snapshot), snapshot, twice, ours, since=at + 30).steps == ()
    assert undrain(judge_snapshot(snapshot), snapshot, once, ours, gap=0).steps == ()
    sick = make_snapshot(smi=render_smi(failure="Yes"))
    (left,) = undrain(judge_snapshot(sick), sick, twice, ours).left
    assert left.why == "is faulty: remapped_rows: a row could not be remapped"
    blind = make_snapshot(smi=(124, ""))
    (left,) = undrain(judge_snapshot(blind), blind, twice, ours).left
    assert left.why == "is unknown: gpus: nvidia-smi did not answer in time"


@pytest.mark.parametrize(*read_cases(__file__, "amended_reason_is_found"))
def test_amended_reason_is_found(written: dict[str, str], text: str, user: str, expected: str) -> None:
    record = NodeRecord(node="node001", **written)
    reason = DrainReason(node="node001", text=text, by=user)
    amended = find_amended([node("node001", "IDLE+DRAIN", text)], {"node001": record}, [reason])
    assert amended == ({"node001": f"{expected}{text}"} if expected else {})


def test_amended_node_is_neither_undrained_nor_rebooted() -> None:
    snapshot, at = make_snapshot(), NOW.timestamp()
    drained = node("node001", "IDLE+DRAIN", f"{OURS}; ticket 4711")
    amended = {"node001": "its reason was amended"}
    plan = plan_undrain(
        [judge_snapshot(snapshot)],
        [drained],
        HealthSettings(),
        records={"node001": NodeRecord(node="node001", passed=(at, at + 61))},
        snapshots={"node001": snapshot},
        since={},
        amended=amended,
    )
    assert (plan.steps, plan.left[0].why) == ((), "its reason was amended")
    assert plan_reboot(["node001"], [drained], HealthSettings(), why="x", amended=amended).steps == ()


def test_listed_reason_is_the_whole_text() -> None:
    amended = node("node001", "IDLE+DRAIN", "Kill task failed; ticket 4711")
    assert not is_listed(amended, HealthSettings())
    assert is_listed(amended, HealthSettings(undrain_reasons=("Kill task*",)))
    assert is_listed(replace(amended, reason="Kill task failed"), HealthSettings())


def test_only_listed_reasons_of_others_are_undrained() -> None:
    snapshot = make_snapshot()
    record = NodeRecord(node="node001", passed=(0.0, 100.0))
    for reason in ("bad fan", "", "Opsctl: x", "opsctl"):
        plan = undrain(judge_snapshot(snapshot), snapshot, record, node("node001", "IDLE+DRAIN", reason))
        assert (plan.steps, plan.left) == ((), ())
    plan = undrain(judge_snapshot(snapshot), snapshot, record, node("node001", "IDLE+DRAIN", "Kill task failed"))
    assert len(plan.steps) == 1


def test_node_with_a_user_process_is_not_undrained() -> None:
    text = (
        "9 1001\n10 1002\n--\n"
        + render_stat(9, "python", seconds_ago=900)
        + render_stat(10, "sh", seconds_ago=5)
        + "--\n100\n"
    )
    killed = node("node001", "IDLE+DRAIN", "Kill task failed")
    snapshot = replace(make_snapshot(processes=text), uid=1002)
    (left,) = undrain(judge_snapshot(snapshot), snapshot, NodeRecord(node="node001"), killed).left
    assert left.why == "1 user process: 9 (python, uid 1001)"
    blind = make_snapshot(processes=(1, ""))
    (left,) = undrain(judge_snapshot(blind), blind, NodeRecord(node="node001"), killed).left
    assert left.why == "the list of processes could not be read"


def test_node_of_others_or_already_booting_is_not_rebooted() -> None:
    nodes = cluster(
        100, node001=("DOWN", "bad fan"), node002=("IDLE+REBOOT_REQUESTED", OURS), node003=("DRAINED", OURS)
    )
    plan = plan_reboot(["node001", "node002", "node003", "node101"], nodes, HealthSettings(), why="Xid 79")
    assert [(step.node, step.reason) for step in plan.steps] == [("node003", "opsctl: reboot: Xid 79")]
    assert [skipped.why for skipped in plan.left] == [
        "is DOWN, not by opsctl: bad fan",
        "reboot already requested: IDLE+REBOOT_REQUESTED",
        "Slurm does not list the node",
    ]


def test_reboots_count_towards_the_cap() -> None:
    names = [f"node{number:03}" for number in range(1, 8)]
    plan = plan_reboot(names, cluster(100, node090=("DRAINED", OURS)), HealthSettings(), why="")
    assert len(plan.steps) == 3
    assert len(plan.left) == 4
    on_their_way = cluster(100, **dict.fromkeys(names[:4], ("IDLE+DRAIN+REBOOT_REQUESTED", OURS)))
    assert plan_reboot(names, on_their_way, HealthSettings(), why="").steps == ()


def test_excluded_nodes_count_towards_the_cap_of_reboots() -> None:
    names = [f"node{number:03}" for number in range(1, 5)]
    away = frozenset({"node001", "node051", "node052"})
    plan = plan_reboot(names, cluster(100), HealthSettings(), why="", excluded=away)
    assert [step.node for step in plan.steps] == ["node001", "node002"]
    assert {skipped.why for skipped in plan.left} == {"beyond the cap of 4 nodes that opsctl takes out at once"}


class Cluster:
    """Nodes that are reported with a delay, so that a caller acts on an old answer."""

    def __init__(self, *names):
        self.nodes_by_name = {name: Node(name=name, state="IDLE", address="") for name in names}

    def nodes(self):
        nodes = list(self.nodes_by_name.values())
        time.sleep(0.3)
        return nodes

    def reasons(self):
        return []

    def drain(self, node, reason):
        self.nodes_by_name[node] = replace(self.nodes_by_name[node], state="IDLE+DRAIN", reason=reason)


def test_simultaneous_drains_keep_to_the_cap(tmp_path):
    site, clock, cluster = SiteDir(tmp_path), SystemClock(), Cluster("node001", "node002")
    site.create()
    quarantine = Quarantine(
        slurm=cluster,
        history=NodeHistory(site=site, clock=clock),
        exclusions=Exclusions(site=site, clock=clock),
        site=HealthSettings(),
        all_arrays=(),
    )

    def drain(name):
        step = Step(node=name, reason="opsctl: xid: 79", snapshot=cluster.nodes_by_name[name])
        return quarantine.drain(NodePlan(steps=(step,), cap=1))[0]

    with ThreadPoolExecutor(2) as pool:
        actions = list(pool.map(drain, ("node001", "node002")))
    drained, left = sorted(actions, key=lambda action: action.action)
    assert (drained.action, left.action) == ("drained", "left")
    assert left.why == "opsctl has 1 node out of service already; the cap is 1"
