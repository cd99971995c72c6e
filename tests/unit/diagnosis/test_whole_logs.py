"""What surrounds a failure in a whole log: start-ups, ends of launchers and of Slurm, echoes of other ranks."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from opsctl.diagnosis.causes import CauseKind
from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from opsctl.diagnosis.root_cause import Diagnosis

CORPUS = Path(__file__).parents[2] / "corpus"
FAILURES = CORPUS / "failures"
SURROUNDINGS = sorted((FAILURES / "surroundings").iterdir())
CASES = [json.loads(line) for line in (FAILURES / "tuning2.jsonl").read_text().splitlines()][::8]
STEPS = [f"step {number} of the training has ended" for number in range(20)]
STRANGE = [
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in f',
    "AttributeError: 'A' object has no attribute 'b'",
]


def diagnose(tmp_path: Path, *lines: str) -> Diagnosis:
    log = tmp_path / "main_log.txt"
    log.write_text("\n".join(lines) + "\n")
    return diagnose_logs([log])


@pytest.mark.parametrize("path", SURROUNDINGS, ids=lambda path: path.stem)
def test_surroundings_change_no_class(tmp_path: Path, path: Path) -> None:
    around = path.read_text().splitlines()
    for case in CASES:
        lines = (around, case["lines"]) if path.stem.startswith("start") else (case["lines"], around)
        diagnosis = diagnose(tmp_path, *lines[0], *lines[1])
        assert not diagnosis.suspects or case["scope"] == "node"
        assert diagnose(tmp_path, *case["lines"]).kind in {diagnosis.kind, CauseKind.UNKNOWN, CauseKind.HANG}, case[
            "id"
        ]


@pytest.mark.parametrize("path", [path for path in SURROUNDINGS if "start" in path.stem], ids=lambda path: path.stem)
def test_start_explains_no_later_end(tmp_path: Path, path: Path) -> None:
    assert diagnose(tmp_path, *path.read_text().splitlines(), *STEPS).kind is CauseKind.UNKNOWN


def test_notice_at_the_end_explains_the_end(tmp_path: Path) -> None:
    line = "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:25641 (errno: 98)."
    assert diagnose(tmp_path, *STEPS, line).cause == "port-in-use"
    assert diagnose(tmp_path, line, *STEPS, line).cause == "port-in-use"
    assert diagnose(tmp_path, line, *STEPS).kind is CauseKind.UNKNOWN


@pytest.mark.parametrize(
    "end",
    [
        "slurmstepd: error: *** JOB 4 ON node1 CANCELLED AT 2024-03-01T10:20:00 ***",
        "slurmstepd: error: *** JOB 4 ON node1 CANCELLED AT 2024-03-01T10:20:00 DUE TO TIME LIMIT ***",
        "srun: error: node2: task 1: Killed",
    ],
)
def test_end_by_slurm_yields_to_an_earlier_exception(tmp_path: Path, end: str) -> None:
    assert diagnose(tmp_path, *STRANGE, end).kind is CauseKind.CODE
    assert diagnose(tmp_path, end).kind is not CauseKind.CODE


@pytest.mark.parametrize("head", ["Exception ignored in: <function Loader.__del__ at 0x7f>", "--- Logging error ---"])
def test_exception_that_python_only_prints_is_no_cause(tmp_path: Path, head: str) -> None:
    assert diagnose(tmp_path, head, *STRANGE, *STEPS).kind is CauseKind.UNKNOWN
    assert diagnose(tmp_path, head, *STRANGE, "MemoryError").kind is CauseKind.MEMORY


def _compose(blocks: list[dict[str, Any]]) -> str:
    """Return the text of a log from its blocks."""
    text = ""
    for block in blocks:
        end = "" if block.get("joined") else "\n"
        for number in range(block.get("from", 0), block.get("from", 0) + block.get("repeat", 1)):
            text += "".join(line.replace("{n}", str(number)) + end for line in block["lines"])
    return text


SHAPES = tomllib.loads((CORPUS / "diagnosis" / "whole-logs.toml").read_text())["log"]


@pytest.mark.parametrize("log", SHAPES, ids=lambda log: log["name"])
def test_a_log_in_the_shape_of_a_public_one_is_told_from_its_start_to_its_end(
    tmp_path: Path, log: dict[str, Any]
) -> None:
    path = tmp_path / "slurm.out"
    path.write_text(_compose(log["blocks"]))
    diagnosis = diagnose_logs([path])
    assert (diagnosis.cause, diagnosis.sure.value) == (log["cause"], log["sure"]), diagnosis.evidence
