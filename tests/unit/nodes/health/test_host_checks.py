"""Every check of the host finds its faults; incomplete answers are unknown."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.base.ports import Answer
from opsctl.nodes.health.checks import CHECKS
from opsctl.nodes.health.node_checker import judge_all
from opsctl.nodes.health.node_state import Health, NodeBaseline, Port
from opsctl.nodes.health.snapshot import parse
from opsctl.settings.health import HealthSettings
from tests.support.cases import read_cases
from tests.support.made_nodes import (
    MARK,
    NOW,
    judge_snapshot,
    list_results,
    make_snapshot,
    read_corpus,
    render_answer,
    render_stat,
)


def test_shared_memory_is_large_and_empty_when_idle() -> None:
    full = "Filesystem 1024-blocks Used Available Capacity Mounted on\ntmpfs 104857600 99 1 97% /dev/shm\n"
    assert list_results(judge_snapshot(make_snapshot(shm=full)), "shm") == [("degraded", "shared memory is 97 % full")]
    assert list_results(judge_snapshot(make_snapshot(shm=full), busy=True), "shm") == [
        ("note", "shared memory is 97 % full")
    ]
    small = list_results(judge_snapshot(make_snapshot(), site=HealthSettings(shm_gib=2000)), "shm")
    assert small == [("degraded", "1008 GiB of shared memory, required 1.95 TiB")]
    assert judge_snapshot(make_snapshot(shm=(124, ""))).health is Health.UNKNOWN


@pytest.mark.parametrize(*read_cases(__file__, "mount_must_exist_and_be_writable"))
def test_mount_must_exist_and_be_writable(section, severity, evidence) -> None:
    section = section if isinstance(section, str) else tuple(section)
    verdict = list_results(
        judge_snapshot(make_snapshot(mount_1=section), site=HealthSettings(mounts=("/scratch",))), "mounts"
    )
    assert verdict == ([(severity, evidence)] if severity else [])


def ports(state: str = "4: ACTIVE", **counters: int) -> str:
    at = "mlx5_0/ports/1"
    lines = [f"{at}/state:{state}", f"{at}/phys_state:5: LinkUp"]
    return "\n".join([*lines, *(f"{at}/counters/{name}:{count}" for name, count in counters.items())]) + "\n"


def test_port_is_compared_with_the_baseline() -> None:
    before = NodeBaseline(
        ports={"mlx5_0/1": Port(state="ACTIVE", counters={"link_downed": 2, "symbol_error": 10})},
        ports_at=(NOW - timedelta(hours=1)).timestamp(),
    )

    def judge(text: str, prior: NodeBaseline = before) -> list[tuple[str, str]]:
        return list_results(judge_snapshot(make_snapshot(infiniband=text), prior=prior), "infiniband")

    assert judge(ports(link_downed=2, symbol_error=12)) == []
    assert judge(ports("1: DOWN")) == [("faulty", "mlx5_0/1 was active and is DOWN")]
    assert judge("") == [("faulty", "mlx5_0/1 was active and is gone")]
    assert judge(ports(link_downed=3)) == [("degraded", "mlx5_0/1: link_downed rose by 1 since the baseline")]
    assert judge(ports(link_downed=0, symbol_error=0)) == []
    assert judge(ports(symbol_error=1000)) == [("note", "mlx5_0/1: symbol_error rose by 990 in 1h")]
    assert judge(ports("1: DOWN"), NodeBaseline()) == []
    ignored = judge_snapshot(make_snapshot(infiniband=""), prior=before, site=HealthSettings(ib_ignore="^mlx5_0/"))
    assert list_results(ignored, "infiniband") == []


def test_only_the_time_service_makes_a_node_degraded() -> None:
    slow = "System time     : 1.500000000 seconds slow of NTP time\n"
    assert list_results(judge_snapshot(make_snapshot(clock=slow)), "clock_skew") == [
        ("degraded", "the node's time service reports a clock offset of -1.500 s")
    ]
    assert list_results(judge_snapshot(make_snapshot(clock=(127, ""))), "clock_skew") == [
        ("unknown", "chronyc reports no clock offset")
    ]
    ahead = replace(make_snapshot(), skew_s=30.0, skew_error_s=1.0)
    assert list_results(judge_snapshot(ahead), "clock_skew") == [
        ("note", "+30.0 s from this machine's clock (uncertainty 1.0 s)")
    ]


def test_missing_memory_is_degraded() -> None:
    verdict = judge_snapshot(make_snapshot(), prior=NodeBaseline(memory_kb=2 * 2113652736))
    assert list_results(verdict, "memory") == [("degraded", "1.97 TiB of memory, expected 3.94 TiB")]


def test_stuck_process_is_only_a_note() -> None:
    text = (
        "7 0\n8 0\n--\n" + render_stat(7, "nvidia-smi", "D", 900) + render_stat(8, "sh (x) Z", "Z", 900) + "--\n100\n"
    )
    verdict = judge_snapshot(make_snapshot(processes=text))
    assert list_results(verdict, "processes") == [
        ("note", "1 in D state: 7 (nvidia-smi)"),
        ("note", "1 zombies: 8 (sh (x) Z)"),
    ]
    assert verdict.health is Health.HEALTHY


def test_unusual_driver_is_a_note() -> None:
    verdict = judge_snapshot(make_snapshot(), driver="575.1", kernel_version="5.14")
    assert list_results(verdict, "versions") == [("note", "driver 570.86.15, most nodes have 575.1")]


def test_unusual_or_missing_library_is_a_note() -> None:
    usual = "libc.so.6\nlibnccl.so.2.21.5\n"
    outputs = [usual, usual, "libc.so.6\nlibnccl.so.2.19.3\n", "libc.so.6\n", f"{usual}libfabric.so.1.22\n", (127, "")]
    nodes = {f"n{number}": make_snapshot(node=f"n{number}", libraries=text) for number, text in enumerate(outputs)}
    verdicts = judge_all(nodes, {}, HealthSettings(), {}, {})
    assert [list_results(verdict, "versions") for verdict in verdicts] == [
        [],
        [],
        [("note", "libnccl 2.19.3, most nodes have 2.21.5")],
        [("note", "libnccl none, most nodes have 2.21.5")],
        [("note", "libfabric 1.22, most nodes have none")],
        [],
    ]


def test_incomplete_answer_is_unknown() -> None:
    verdict = judge_snapshot(make_snapshot(render_answer()[:900]))
    assert (verdict.health, list_results(verdict, "reach")) == (
        Health.UNKNOWN,
        [("unknown", "the node's answer is incomplete")],
    )


@pytest.mark.parametrize("length", [30, 900])
def test_broken_connection_is_reported_as_the_reason(length: int) -> None:
    problem = "ssh: the connection broke before the command ended"
    cut = Answer(node="node001", by="ssh", out=render_answer()[:length], problem=problem)
    verdict = judge_snapshot(parse(cut, MARK, sent_at=NOW, answered_at=NOW))
    assert (verdict.health, list_results(verdict, "reach")) == (
        Health.UNKNOWN,
        [("unknown", problem)],
    )


def test_incomplete_answer_may_contain_evidence() -> None:
    text = render_answer(smi=(15, "GPU is lost"))
    assert judge_snapshot(make_snapshot(text[: text.index("@@mark begin shm")])).health is Health.FAULTY


def test_every_check_is_tested() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*_checks.*"))
    assert [name for name in CHECKS if f'"{name}"' not in text] == []


def test_fio_is_evidence_only_below_the_settings() -> None:
    snapshot = make_snapshot(fio=read_corpus("fio/3.33/direct.json"))
    (severity, evidence), *others = list_results(judge_snapshot(snapshot), "fio")
    assert (severity, others) == ("note", [])
    assert re.fullmatch(r"write \d+ MiB/s, read \d+ MiB/s, \d+ small reads/s, 99 % within [\d.]+ ms", evidence)
    fast = judge_snapshot(snapshot, site=HealthSettings(fio_write_mib_s=1e6, fio_read_mib_s=1))
    assert fast.health is Health.DEGRADED
    assert re.match(r"writes \d+ MiB/s, less than 1e\+06; write ", list_results(fast, "fio")[0][1])


def test_reads_through_the_page_cache_are_no_evidence() -> None:
    site = HealthSettings(fio_read_mib_s=1e6)
    assert judge_snapshot(make_snapshot(fio=read_corpus("fio/3.33/direct.json")), site=site).health is Health.DEGRADED
    verdict = judge_snapshot(make_snapshot(fio=read_corpus("fio/3.33/buffered.json")), site=site)
    assert (verdict.health, list_results(verdict, "fio")[0][1].endswith(", through the page cache")) == (
        Health.HEALTHY,
        True,
    )


@pytest.mark.parametrize(*read_cases(__file__, "failed_fio_is_unknown_and_no_evidence", section=tuple))
def test_failed_fio_is_unknown_and_no_evidence(section: tuple[int | str, str], evidence: str) -> None:
    code, out = section
    snapshot = make_snapshot(fio=(code, read_corpus(out) if out.endswith(".json") else out))
    verdict = judge_snapshot(snapshot, site=HealthSettings(fio_write_mib_s=1e6))
    assert list_results(verdict, "fio") == [("unknown", evidence)]
    assert verdict.health is Health.HEALTHY
