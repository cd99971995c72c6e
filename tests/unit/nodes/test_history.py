"""What is remembered of nodes and cards."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.nodes.exclusions import Exclusions
from opsctl.nodes.health.node_checker import judge_all
from opsctl.nodes.health.node_state import NodeSnapshot
from opsctl.nodes.history import NodeHistory, NodeRecord, find_lemons, node_score, update_record
from opsctl.settings.health import HealthSettings
from opsctl.state.site_dir import SiteDir
from tests.support.clocks import FakeClock
from tests.support.made_nodes import NOW, corpus, seen, smi, uuid, verdict


@pytest.fixture
def history(tmp_path: Path) -> NodeHistory:
    return NodeHistory(site=SiteDir(tmp_path / ".site"), clock=FakeClock(NOW))


def save(history: NodeHistory, snapshot: NodeSnapshot) -> NodeRecord:
    judged = verdict(snapshot, prior=history.read(snapshot.node).prior)
    (record,) = history.save([(snapshot, judged)], baseline_hours=24)
    return record


def test_written_record_is_read_again(history: NodeHistory) -> None:
    record = save(history, seen(nvlink=corpus("nvlink/gb200.txt"), infiniband="a/ports/1/state:4: ACTIVE\n"))
    assert history.read("node001") == record
    assert len(record.cards) == 8
    assert [node_record.node for node_record in history.all()] == ["node001"]


def test_unknown_node_has_an_empty_record(history: NodeHistory) -> None:
    assert history.read("node999") == NodeRecord(node="node999")
    assert (history.all(), history.cards()) == ([], {})


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"node": 1, "what": 2}', '{"cards": [{}]}', '{"links": 3}'])
def test_broken_file_is_an_empty_record(history: NodeHistory, text: str) -> None:
    save(history, seen())
    (history.site.nodes / "node" / "node001.json").write_text(text)
    (history.site.nodes / "card").mkdir()
    (history.site.nodes / "card" / "x.json").write_text(text)
    assert history.read("node001") == NodeRecord(node="node001")
    assert (history.all(), history.cards()) == ([], {})


def test_node_name_cannot_leave_the_directory(history: NodeHistory) -> None:
    save(history, seen(node="../../x"))
    assert history.read("../../x").health == "healthy"
    assert [path.name for path in (history.site.nodes / "node").iterdir()] == ["%2E%2E%2F%2E%2E%2Fx.json"]


def test_missing_gpu_stays_expected(history: NodeHistory) -> None:
    save(history, seen())
    for _ in range(2):
        record = save(history, seen(smi=smi(7), pci=""))
        assert record.health == "faulty"
    assert len(record.cards) == 8
    history.forget_baseline(["node001"])
    assert save(history, seen(smi=smi(7), pci="")).health == "healthy"


def test_unread_driver_and_shm_stay_as_stored(history: NodeHistory) -> None:
    save(history, replace(seen(), shm_kb=98_566_144))
    record = save(history, replace(seen(smi=(124, "")), shm_kb=None))
    assert (record.driver, record.shm_kb) == ("570.86.15", 98_566_144)
    assert save(history, replace(seen(smi=smi(driver="580.1")), shm_kb=65_536)).driver == "580.1"
    assert history.read("node001").shm_kb == 65_536


def test_same_fault_since_one_boot_is_one_incident(history: NodeHistory) -> None:
    for _ in range(3):
        record = save(history, seen(smi=smi(failure="Yes")))
    (incident,) = record.incidents
    assert (incident.count, incident.gpu, incident.serial) == (3, uuid(3), "165052200003")
    assert history.cards()[uuid(3)] == (incident,)


def test_gpu_is_recognized_under_another_node_name(history: NodeHistory) -> None:
    for boot in range(2):
        bad = replace(seen(node="cloud-7", smi=smi(failure="Yes")), boot=f"b{boot}")
        save(history, bad)
    cards = history.cards()
    lemons = find_lemons(cards, NOW, days=28, limit=6)
    assert set(lemons) == {uuid(3), "165052200003"}
    assert lemons[uuid(3)].startswith(
        "score 6; last on cloud-7, 2026-11-20: remapped_rows: a row could not be remapped"
    )
    record = save(history, seen(node="cloud-9"))
    assert node_score(record, cards, NOW, 28) == 6
    assert node_score(record, cards, NOW + timedelta(days=29), 28) == 0


def test_unknown_check_keeps_earlier_passes(history: NodeHistory) -> None:
    well, unknown = seen(), seen(smi=(124, ""))
    record = NodeRecord(node="node001")
    for number, snapshot in enumerate((well, seen(smi=smi(failure="Yes")), well, unknown, well)):
        then = replace(snapshot, at=NOW + timedelta(minutes=number))
        record = update_record(record, then, verdict(then), baseline_hours=24)
    assert record.passed == ((NOW + timedelta(minutes=2)).timestamp(), (NOW + timedelta(minutes=4)).timestamp())


def test_counter_baseline_expires(history: NodeHistory) -> None:
    def look(count: int, hours: float) -> str:
        text = f"mlx/ports/1/state:4: ACTIVE\nmlx/ports/1/counters/link_downed:{count}\n"
        return save(history, replace(seen(infiniband=text), at=NOW + timedelta(hours=hours))).health

    looks = [look(2, 0), look(3, 1), look(3, 2), look(3, 25), look(3, 26)]
    assert looks == ["healthy", "degraded", "degraded", "degraded", "healthy"]


def test_repeated_hang_counts_once_and_survives_a_new_baseline(history: NodeHistory) -> None:
    for attempt in ("gpt/12_1.0", "gpt/12_1.0", "gpt/12_2.0"):
        count = history.note_hang("node001", attempt, NOW, days=28)
    assert count == 2
    history.forget_baseline(["node001"])
    assert node_score(save(history, seen()), {}, NOW, 28) == 4
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
    sick = smi(failure="Yes", sram="3")
    well = smi()
    kernel = corpus("dmesg/xid-13-109.txt") + corpus("dmesg/xid-119-gsp.txt")
    kinds = [seen(smi=well, kernel=kernel), seen(smi=sick), seen(), seen(smi=(124, ""))]
    snapshots = {f"node{number:04}": replace(kinds[number % 4], node=f"node{number:04}") for number in range(5000)}
    priors = {name: NodeRecord(node=name).prior for name in snapshots}
    began = time.process_time()
    verdicts = judge_all(snapshots, priors, HealthSettings(), {}, {})
    assert time.process_time() - began < 5
    assert [verdict.health.value for verdict in verdicts[:4]] == ["faulty", "faulty", "healthy", "unknown"]


def test_record_is_readable_json(history: NodeHistory) -> None:
    save(history, seen(smi=smi(failure="Yes")))
    fields = json.loads((history.site.nodes / "node" / "node001.json").read_text())
    assert fields["health"] == "faulty"
    assert datetime.fromtimestamp(fields["at"], UTC) == NOW + timedelta(seconds=2)
