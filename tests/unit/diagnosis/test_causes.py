"""Rows of the catalogue of causes classify real lines."""

import re
from pathlib import Path

import pytest

from opsctl.diagnosis.causes import UNEXPLAINED, Weight, causes, classify
from opsctl.diagnosis.line_origin import split
from opsctl.diagnosis.scan_logs import select_lines
from tests.support.cases import read_table

LINES = Path(__file__).parents[2] / "corpus" / "diagnosis" / "lines"


def lines_of(name: str) -> list[str]:
    return [line for line in (LINES / f"{name}.txt").read_text().splitlines() if line and not line.startswith("# ")]


ALL = [(cause.name, line) for cause in causes() for line in lines_of(cause.name)]


@pytest.mark.parametrize(("name", "line"), ALL, ids=[f"{name}-{n}" for n, (name, _) in enumerate(ALL)])
def test_line_has_the_cause_of_its_row(name: str, line: str) -> None:
    cause = classify(split(line.encode())[1].decode())
    assert cause is not None
    assert cause.name == name


@pytest.mark.parametrize(("name", "line"), ALL, ids=[f"{name}-{n}" for n, (name, _) in enumerate(ALL)])
def test_line_passes_the_gate(name: str, line: str) -> None:
    assert list(select_lines(line.encode()))


@pytest.mark.parametrize("cause", causes(), ids=lambda cause: cause.name)
def test_every_row_has_two_lines_with_a_source(cause: object) -> None:
    text = (LINES / f"{cause.name}.txt").read_text()
    assert len(lines_of(cause.name)) >= 2
    assert re.match(r"# \S", text)


def test_every_file_of_lines_has_a_row() -> None:
    assert {path.stem for path in LINES.iterdir()} == {cause.name for cause in causes()}


def test_later_row_exists() -> None:
    names = {cause.name for cause in causes()}
    assert {cause.later for cause in causes() if cause.later} <= names


HARMLESS = read_table(__file__, "harmless")


ALL_CLEAR = read_table(__file__, "all_clear")


@pytest.mark.parametrize("line", ALL_CLEAR)
def test_all_clear_names_no_cause(line: str) -> None:
    """What health checks and monitors print into the log of a healthy rank."""
    cause = classify(line)
    assert cause is None or cause.weight is Weight.NOTE


FAULTS = read_table(__file__, "faults")


@pytest.mark.parametrize("line", FAULTS)
def test_fault_beside_harmless_words_keeps_its_cause(line: str) -> None:
    cause = classify(line)
    assert cause is not None
    assert cause.name == FAULTS[line]
    assert list(select_lines(line.encode()))


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_line_has_no_cause(line: str) -> None:
    assert classify(line) is None


def test_unknown_traceback_is_unexplained() -> None:
    assert classify("Traceback (most recent call last):") is UNEXPLAINED


SURVIVED = read_table(__file__, "survived")


@pytest.mark.parametrize("line", SURVIVED)
def test_line_of_a_healthy_start_explains_no_end(line: str) -> None:
    cause = classify(split(line.encode())[1].decode())
    assert cause is None or cause.weight is Weight.NOTE


AMD = re.compile(r"\bHIP\b|\bhip[A-Z]|amdgpu|ROC[mk]|HSA_|miopen|MIOpen|rocblas|Memory access fault by GPU")
NVIDIA = re.compile(r"CUDA|\bXid|nvidia-|NVML")


@pytest.mark.parametrize("line", [line for _, line in ALL if AMD.search(line)])
def test_advice_about_amd_names_its_tools(line: str) -> None:
    cause = classify(split(line.encode())[1].decode())
    assert cause is not None
    assert not NVIDIA.search(cause.advice) or re.search(r"AMD|amd-|roc", cause.advice)
    assert not re.search(r"CUDA|NVIDIA", cause.says) or "cuBLAS" in cause.says
