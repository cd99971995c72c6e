"""Every row of kernel_log.toml finds its lines in recorded kernel logs, and gather.sh finds the same lines."""

import re
import subprocess
from pathlib import Path

import pytest

from opsctl.diagnosis.causes import causes
from opsctl.nodes.health.kernel_lines import read_rows, read_xids
from opsctl.nodes.health.node_state import Health, NodeBaseline
from opsctl.nodes.health.snapshot import SCRIPT
from tests.support.cases import read_table
from tests.support.made_nodes import CORPUS, NOW, judge_snapshot, make_snapshot, read_corpus, stamp_lines

RECORDED = read_table(__file__, "recorded")
NEW_CHECKS = {row.check for row in read_rows()} - {"xid"}


def list_lines(text: str, prior: NodeBaseline | None = None) -> list[tuple[str, str, str]]:
    """Return check, severity and device of the results that the kernel log alone causes."""
    verdict = judge_snapshot(make_snapshot(kernel=text), prior=prior)
    found = [result for result in verdict.results if result.check in NEW_CHECKS]
    devices = [re.search(r" on (.+?): ", result.evidence) for result in found]
    return [
        (result.check, result.severity.value, device[1] if device else "")
        for result, device in zip(found, devices, strict=True)
    ]


@pytest.mark.parametrize("log", RECORDED)
def test_recorded_line_has_the_severity_of_its_row(log: str) -> None:
    text = re.sub(r"^\[ *[\d.]+\] ", "", read_corpus(f"dmesg/{log}.txt"), flags=re.MULTILINE)
    assert sorted(list_lines(text)) == sorted(map(tuple, RECORDED[log]))


def test_repeated_errors_of_one_disk_count() -> None:
    line = "blk_update_request: I/O error, dev {}, sector 1 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0\n"
    assert list_lines(line.format("sda") * 3) == [("disk", "degraded", "sda")]
    assert list_lines("".join(line.format(disk) for disk in ("sda", "sdb", "sdc"))) == [
        ("disk", "note", "sda"),
        ("disk", "note", "sdb"),
        ("disk", "note", "sdc"),
    ]


def test_old_and_cleared_lines_are_no_evidence() -> None:
    text = read_corpus("dmesg/edac-uncorrectable.txt")
    assert list_lines(stamp_lines(text, 23 * 3600)) == [("machine_checks", "faulty", "")]
    assert list_lines(stamp_lines(text, 25 * 3600)) == []
    assert list_lines(stamp_lines(text, 3600), NodeBaseline(cleared=NOW.timestamp())) == []


def test_unreadable_log_is_unknown() -> None:
    verdict = judge_snapshot(make_snapshot(kernel=(1, "")))
    unknown = [result.check for result in verdict.results if result.severity == "unknown"]
    assert (unknown, verdict.health) == (["kernel_log", "machine_checks"], Health.HEALTHY)


def test_every_row_has_a_recorded_line() -> None:
    text = "".join(path.read_text() for path in (CORPUS / "dmesg").rglob("*.txt")).splitlines()
    unseen = [row.pattern.pattern for row in read_rows() if not any(row.pattern.search(line) for line in text)]
    assert all(
        "LBUG" in pattern or "Memory failure" in pattern or "context corrupt" in pattern or "High temp" in pattern
        for pattern in unseen
    ), unseen
    assert all(row.meaning and row.remedy and row.source for row in read_rows())


def test_node_finds_every_line_of_the_table(tmp_path: Path) -> None:
    """gather.sh greps on the node before the rows are applied: what grep drops, no row can match."""
    script = SCRIPT.read_text()
    section = script[script.index("gather kernel") :].partition('\' "$work"')[0].partition("'")[2]
    recorded = [path.read_text() for path in sorted((CORPUS / "dmesg").rglob("*.txt"))]
    (tmp_path / "dmesg").write_text("#!/bin/sh\ncat <<'END'\n" + "".join(recorded) + "END\n")
    (tmp_path / "dmesg").chmod(0o755)
    gathered = subprocess.run(
        ["sh", "-c", section, "kernel", str(tmp_path)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    matching = [
        line
        for line in "".join(recorded).splitlines()
        if any(row.pattern.search(line) for row in read_rows() if row.severity != "none") or "NVRM: Xid" in line
    ]
    assert len(matching) > 40
    assert [line for line in matching if line not in gathered] == []


def test_every_cause_of_the_tables_is_in_the_catalogue() -> None:
    named = {row.cause for row in read_rows()} | {row.cause for row in read_xids().values()}
    assert named - {None, ""} <= {cause.name for cause in causes()}
