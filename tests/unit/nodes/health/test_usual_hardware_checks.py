"""A node broken at its first look does not become its own baseline: the majority of its kind decides."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.base.ports import Answer
from opsctl.host.system import SystemClock
from opsctl.nodes.health.node_checker import NodeChecker, judge_all
from opsctl.nodes.health.node_state import Health, NodeSnapshot, Usual
from opsctl.nodes.health.usual_hardware import find_usual, measure, name_kind
from opsctl.nodes.history import NodeHistory
from opsctl.nodes.remote.fanout import Fanout
from opsctl.settings.health import HealthSettings
from opsctl.slurm.parse_output import KIND_FIELDS, NO_MEMORY, parse_kinds
from opsctl.state.site_dir import SiteDir
from tests.support.made_nodes import MARK, gpu_bus, gpu_uuid, list_results, make_snapshot, render_answer, render_smi

LINKS = "".join(
    f"GPU {number}: NVIDIA H100 (UUID: {gpu_uuid(number)})\n"
    + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    for number in range(8)
)


def render_ports(count: int, gbps: int = 400) -> str:
    lines = []
    for number in range(count):
        lines += [f"mlx5_{number}/ports/1/state:4: ACTIVE", f"mlx5_{number}/ports/1/rate:{gbps} Gb/sec (4X NDR)"]
    return "\n".join(lines) + "\n"


def make_node(**sections: object) -> NodeSnapshot:
    return make_snapshot(**{"nvlink": LINKS, "infiniband": render_ports(4), **sections})


def judge_first_look(broken: NodeSnapshot, *others: NodeSnapshot, **site: float):
    usual = find_usual(measure(broken), [measure(other) for other in others])
    return judge_all({"odd": broken}, {}, HealthSettings(**site), {"odd": False}, {}, usual={"odd": usual})[0]


BUS = "".join(f"0000:{gpu_bus(number)}:00.0\n" for number in range(8))
FAULTS = {
    "a card that is gone": (
        {"smi": render_smi(7), "pci": BUS[14:]},
        ("gpus", "faulty", "7 of 8 GPUs answer"),
    ),
    "a card gone, and a hanging driver": (
        {"smi": (124, ""), "pci": BUS[14:]},
        ("gpus", "faulty", "7 GPUs on the bus, most nodes of this kind have 8"),
    ),
    "a port that is down": (
        {"infiniband": render_ports(3)},
        ("infiniband", "faulty", "3 active ports, most nodes of this kind have 4"),
    ),
    "a slow port": (
        {"infiniband": render_ports(4).replace("400", "200", 1)},
        ("infiniband", "degraded", "mlx5_0/1 runs at 200 Gb/s, expected 400"),
    ),
    "a link that is down": (
        {"nvlink": LINKS.replace("Link 17: 26.562 GB/s", "Link 17: <inactive>", 1)},
        ("nvlink", "degraded", "17 links are up, most nodes of this kind have 18"),
    ),
    "a missing memory module": (
        {"host": "kernel=5.14\nboot=b1\nuptime=1000000\nmemory=1981549440\n"},
        ("memory", "degraded", "1.85 TiB of memory, expected 1.97 TiB"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_majority_finds_a_fault_at_the_first_look(fault: str) -> None:
    sections, (check, severity, evidence) = FAULTS[fault]
    verdict = judge_first_look(make_node(**sections), *[make_node()] * 3)
    assert list_results(verdict, check)[:1] == [(severity, evidence)]
    assert verdict.is_bad
    assert not judge_first_look(make_node(), make_node(**sections), *[make_node()] * 2).is_bad


def test_no_majority_is_unknown() -> None:
    seven = make_node(smi=render_smi(7), pci=BUS[14:])
    verdict = judge_first_look(seven, make_node(), make_node(), seven)
    assert verdict.health is Health.UNKNOWN
    assert ("unknown", "7 GPUs that answer, other nodes of this kind have 8, 8, 7: no majority") in list_results(
        verdict, "majority"
    )
    assert judge_first_look(seven, make_node(), make_node(), seven, gpus_per_node=7).health is Health.HEALTHY
    assert judge_first_look(make_node(), seven, seven).health is Health.HEALTHY
    assert judge_first_look(seven).health is Health.HEALTHY


def test_small_differences_of_memory_are_equal() -> None:
    sizes = [2113652736 + number * 1_000_000 for number in range(5)]
    usual = find_usual({"KiB of memory": 2113652736.0}, [{"KiB of memory": size} for size in sizes])
    assert usual == Usual(values={"KiB of memory": sizes[2]})


def test_job_may_see_only_its_own_gpus() -> None:
    partial = replace(make_node(smi=render_smi(2)), in_job=True)
    verdict = judge_first_look(partial, *[make_node()] * 3)
    assert not verdict.is_bad


@pytest.mark.parametrize("site", [{"ib_ports": 8}, {"ib_rate_gbps": 800.0}, {"nvlinks": 20}])
def test_settings_name_the_expected_hardware(site: dict[str, float]) -> None:
    assert judge_first_look(make_node(), **site).is_bad


def test_kind_needs_slurm_and_sys() -> None:
    models = "gpu_model=0x10de:0x2330\n" * 2
    node = make_node(hardware=f"cpu= 64 AMD EPYC\nclass/dmi/id/product_name:XE8545\n{models}")
    assert name_kind(node, "64 CPUs, gpu:8") == "64 CPUs, gpu:8 | XE8545 | 64 AMD EPYC | 0x10de:0x2330"
    assert name_kind(node, "") == name_kind(make_node(hardware=(1, "")), "64 CPUs, gpu:8") == ""


def test_kind_ignores_the_sockets_of_a_gres() -> None:
    rows = [("n1", "64", "515000", "gpu:h100:8(S:0-1)"), ("n2", "4", "1", "(null)")]
    text = "".join("@".join((*row, "")) + "\n" for row in rows)
    assert len(KIND_FIELDS) == 4
    assert parse_kinds(text, "@") == {"n1": "64 CPUs, 515000 MB, gpu:h100:8", "n2": f"4 CPUs, {NO_MEMORY}, no gres"}


class PrintedAnswers:
    """A shell whose nodes print prepared answers."""

    name = "local"

    def __init__(self, sections_by_node: dict[str, dict[str, object]]) -> None:
        self.sections_by_node = sections_by_node

    def reaches(self, node: str) -> bool:
        return node in self.sections_by_node

    def run(self, node: str, argv: object, *, timeout: float, stdin: str = "") -> Answer:
        mark = re.match(r"MARK='?([^'\n]+)", stdin)
        assert mark
        out = render_answer(**self.sections_by_node[node]).replace(MARK, mark[1])  # type: ignore[arg-type]  # passed on
        return Answer(node=node, by="local", code=0, out=out)


def test_remembered_nodes_of_the_kind_count(tmp_path: Path) -> None:
    """One node is checked alone; the others were checked before."""
    whole: dict[str, object] = {"infiniband": render_ports(4)}
    slow: dict[str, object] = {"infiniband": render_ports(3)}
    nodes = {"n1": whole, "n2": whole, "n3": whole, "n4": slow, "n5": slow}
    history = NodeHistory(site=SiteDir(tmp_path / ".site"), clock=SystemClock())
    checker = NodeChecker(
        fanout=Fanout(shells=[PrintedAnswers(nodes)]),
        history=history,
        site=HealthSettings(),
        clock=SystemClock(),
        busy=dict.fromkeys(nodes, False),
        slurm_kinds={"n1": "gpu:8", "n2": "gpu:8", "n3": "gpu:8", "n4": "gpu:8", "n5": "gpu:4"},
    )
    assert {verdict.health for verdict in checker.check(["n1", "n2", "n3", "n5"]).verdicts} == {Health.HEALTHY}
    verdict = checker.check(["n4"]).verdicts[0]
    assert list_results(verdict, "infiniband") == [("faulty", "3 active ports, most nodes of this kind have 4")]
