"""The stored history of nodes and GPUs."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.health.node_checker import judge_all
from opsctl.nodes.health.node_state import NodeSnapshot
from opsctl.nodes.history import NodeHistory, NodeRecord, update_record
from opsctl.nodes.node_score import find_flaky_gpus, node_score
from opsctl.settings.health import HealthSettings
from opsctl.state.site_dir import SiteDir
from tests.support.clocks import FakeClock
from tests.support.made_nodes import NOW, gpu_uuid, judge_snapshot, make_snapshot, read_corpus, render_smi


@pytest.fixture
def history(tmp_path: Path) -> NodeHistory:
    return NodeHistory(site=SiteDir(tmp_path / ".site"), clock=FakeClock(NOW))


def save(history: NodeHistory, snapshot: NodeSnapshot) -> NodeRecord:
    verdict = judge_snapshot(snapshot, prior=history.read(snapshot.node))
    (record,) = history.save([(snapshot, verdict)], baseline_hours=24)
    return record


def test_written_record_is_read_again(history: NodeHistory) -> None:
    record = save(
        history, make_snapshot(nvlink=read_corpus("nvlink/gb200.txt"), infiniband="a/ports/1/state:4: ACTIVE\n")
    )
    assert history.read("node001") == record
    assert len(record.cards) == 8
    assert [node_record.node for node_record in history.all()] == ["node001"]


def test_unknown_node_has_an_empty_record(history: NodeHistory) -> None:
    assert history.read("node999") == NodeRecord(node="node999")
    assert (history.all(), history.cards()) == ([], {})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"node": 1, "what": 2}', '{"cards": [{}]}', '{"links": 3}'])
def test_broken_file_is_an_empty_record(history: NodeHistory, text: str) -> None:
    save(history, make_snapshot())
    (history.site.nodes / "node" / "node001.json").write_text(text)
    (history.site.nodes / "card").mkdir()
    (history.site.nodes / "card" / "x.json").write_text(text)
    assert history.read("node001") == NodeRecord(node="node001")
    assert (history.all(), history.cards()) == ([], {})


def test_node_name_cannot_leave_the_directory(history: NodeHistory) -> None:
    save(history, make_snapshot(node="../../x"))
    assert history.read("../../x").health == "healthy"
    assert [path.name for path in (history.site.nodes / "node").iterdir()] == ["%2E%2E%2F%2E%2E%2Fx.json"]


def test_missing_gpu_stays_expected(history: NodeHistory) -> None:
    save(history, make_snapshot())
    for _ in range(2):
        record = save(history, make_snapshot(smi=render_smi(7), pci=""))
        assert record.health == "faulty"
    assert len(record.cards) == 8
    history.forget_baseline(["node001"])
    assert save(history, make_snapshot(smi=render_smi(7), pci="")).health == "healthy"


def test_unread_driver_and_shm_stay_as_stored(history: NodeHistory) -> None:
    save(history, replace(make_snapshot(), shm_kb=98_566_144))
    record = save(history, replace(make_snapshot(smi=(124, "")), shm_kb=None))
    assert (record.driver, record.shm_kb) == ("570.86.15", 98_566_144)
    assert save(history, replace(make_snapshot(smi=render_smi(driver="580.1")), shm_kb=65_536)).driver == "580.1"
    assert history.read("node001").shm_kb == 65_536


def test_same_fault_since_one_boot_is_one_incident(history: NodeHistory) -> None:
    for _ in range(3):
        record = save(history, make_snapshot(smi=render_smi(failure="Yes")))
    (incident,) = record.incidents
    assert (incident.count, incident.gpu, incident.serial) == (3, gpu_uuid(3), "165052200003")
    assert history.cards()[gpu_uuid(3)] == (incident,)


def test_gpu_is_recognized_under_another_node_name(history: NodeHistory) -> None:
    for boot in range(2):
        bad = replace(make_snapshot(node="cloud-7", smi=render_smi(failure="Yes")), boot=f"b{boot}")
        save(history, bad)
    cards = history.cards()
    summaries = find_flaky_gpus(cards, NOW, days=28, limit=6)
    assert set(summaries) == {gpu_uuid(3), "165052200003"}
    assert summaries[gpu_uuid(3)].startswith(
        "score 6; last on cloud-7, 2026-11-20: remapped_rows: a row could not be remapped"
    )
    record = save(history, make_snapshot(node="cloud-9"))
    assert node_score(record, cards, NOW, 28) == 6
    assert node_score(record, cards, NOW + timedelta(days=29), 28) == 0


def test_unknown_check_keeps_earlier_passes(history: NodeHistory) -> None:
    well, unknown = make_snapshot(), make_snapshot(smi=(124, ""))
    record = NodeRecord(node="node001")
    for number, snapshot in enumerate((well, make_snapshot(smi=render_smi(failure="Yes")), well, unknown, well)):
        then = replace(snapshot, at=NOW + timedelta(minutes=number))
        record = update_record(record, then, judge_snapshot(then), baseline_hours=24)
    assert record.passed == ((NOW + timedelta(minutes=2)).timestamp(), (NOW + timedelta(minutes=4)).timestamp())


def test_counter_baseline_expires(history: NodeHistory) -> None:
    def check(count: int, hours: float) -> str:
        text = f"mlx/ports/1/state:4: ACTIVE\nmlx/ports/1/counters/link_downed:{count}\n"
        return save(history, replace(make_snapshot(infiniband=text), at=NOW + timedelta(hours=hours))).health

    healths = [check(2, 0), check(3, 1), check(3, 2), check(3, 25), check(3, 26)]
    assert healths == ["healthy", "degraded", "degraded", "degraded", "healthy"]


def test_repeated_hang_counts_once_and_survives_a_new_baseline(history: NodeHistory) -> None:
    for attempt in ("gpt/12_1.0", "gpt/12_1.0", "gpt/12_2.0"):
        count = history.note_hang("node001", attempt, NOW, days=28)
    assert count == 2
    history.forget_baseline(["node001"])
    assert node_score(save(history, make_snapshot()), {}, NOW, 28) == 4
    assert node_score(history.read("node001"), {}, NOW + timedelta(days=29), 28) == 0


def test_exclusions_expire(tmp_path: Path) -> None:
    clock = FakeClock(NOW)
    exclusions = Exclusions(site=SiteDir(tmp_path / ".site"), clock=clock)
    exclusions.add([("node003", "opsctl: xid: 79"), ("node004", "x")], hours=72)
    exclusions.remove(["node004"])
    assert [(exclusion.node, exclusion.reason) for exclusion in exclusions.now()] == [("node003", "opsctl: xid: 79")]
    clock.time += timedelta(hours=73)
    assert exclusions.now() == []


def test_five_thousand_nodes_are_judged_in_five_seconds() -> None:
    sick = render_smi(failure="Yes", sram="3")
    well = render_smi()
    kernel = read_corpus("dmesg/xid-13-109.txt") + read_corpus("dmesg/xid-119-gsp.txt")
    kinds = [
        make_snapshot(smi=well, kernel=kernel),
        make_snapshot(smi=sick),
        make_snapshot(),
        make_snapshot(smi=(124, "")),
    ]
    snapshots = {f"node{number:04}": replace(kinds[number % 4], node=f"node{number:04}") for number in range(5000)}
    priors = {name: NodeRecord(node=name) for name in snapshots}
    began = time.process_time()
    verdicts = judge_all(snapshots, priors, HealthSettings(), {}, {})
    assert time.process_time() - began < 5
    assert [verdict.health.value for verdict in verdicts[:4]] == ["faulty", "faulty", "healthy", "unknown"]


def test_record_is_readable_json(history: NodeHistory) -> None:
    save(history, make_snapshot(smi=render_smi(failure="Yes")))
    fields = json.loads((history.site.nodes / "node" / "node001.json").read_text())
    assert fields["health"] == "faulty"
    assert datetime.fromtimestamp(fields["at"], UTC) == NOW + timedelta(seconds=2)
