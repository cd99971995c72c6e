"""Rows of the catalogue of causes classify real lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opsctl.diagnosis.causes import UNEXPLAINED, Weight, causes, classify
from opsctl.diagnosis.scan_logs import select_lines
from opsctl.diagnosis.speakers import split

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


HARMLESS = [
    " iteration    29020/  311541 | lm loss: 2.775923E+00 | number of nan iterations:   0 |",
    "[2021-08-08 01:00:44,221] [INFO] [logging.py:68:log_dist] [Rank 0] Saving model checkpoint: /ckpt/mp_rank_00.pt",
    "ubuntu:39964:40049 [5] NCCL INFO Channel 20 : 5[5] -> 4[4] via SHM/direct/direct",
    "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
    "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001",
    "*****************************************",
    "srun: error: node001: task 3: Exited with exit code 143",
    "/lib/python3.8/site-packages/torch/cuda/__init__.py: UserWarning: something may be slow",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_line_has_no_cause(line: str) -> None:
    assert classify(line) is None


def test_unknown_traceback_is_unexplained() -> None:
    assert classify("Traceback (most recent call last):") is UNEXPLAINED


SURVIVED = [
    "wandb: Currently logged in as: user. Use `wandb login --relogin` to force relogin",
    "UserWarning: Failed to load image Python extension: 'libpng16.so.16: cannot open shared object file'",
    "node1:10:10 [0] NCCL INFO NET/Plugin : Plugin load returned 2 : libnccl-net.so: cannot open shared object file",
    "node1:10:10 [0] NCCL INFO NET/IB : No device found.",
    "node1:10:10 [0] NCCL INFO Could not enable P2P between dev 1(=2000) and dev 0(=1000)",
    "[W init.cpp:767] Warning: nvfuser is no longer supported in torch script",
    " > WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt",
    "pyxis: imported docker image: nvcr.io#nvidia/pytorch:23.10-py3",
    "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`...",
    "  tensor_model_parallel_size ...................... 4",
    "[2024-01-01 10:00:00,123] [INFO] [config.py:1001:print]   zero_optimization_stage .......... 2",
    "apex is not installed",
    "[2024-01-01 10:00:00,123] [WARNING] [runner.py:178:fetch_hostfile] Unable to find hostfile, will proceed alone",
]


@pytest.mark.parametrize("line", SURVIVED)
def test_line_of_a_healthy_start_explains_no_end(line: str) -> None:
    cause = classify(split(line.encode())[1].decode())
    assert cause is None or cause.weight is Weight.NOTE
