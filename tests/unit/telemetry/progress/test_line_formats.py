"""Lines of scripts of one's own. `pytest tests/unit/telemetry/progress/test_line_formats.py`"""

from __future__ import annotations

import time

import pytest

from opsctl.telemetry.progress.log_formats import load_formats
from opsctl.telemetry.progress.step_reader import StepReader
from tests.support.cases import read_cases


def read(line: str) -> dict[str, float]:
    return StepReader().read(line.encode()).values


@pytest.mark.parametrize(*read_cases(__file__, "own_line_is_read"))
def test_own_line_is_read(line: str, values: dict[str, float]) -> None:
    stated = read(line)
    assert {name: stated.get(name) for name in values} == values


@pytest.mark.parametrize(*read_cases(__file__, "other_line_states_no_step"))
def test_other_line_states_no_step(line: str) -> None:
    assert "step" not in read(line)


def test_step_within_an_epoch_is_no_step() -> None:
    assert read("Epoch 2, step 5/100, loss 2.5") == {"loss": 2.5}


@pytest.mark.parametrize("line_format", load_formats(), ids=[row.name for row in load_formats()])
def test_hostile_line_takes_bounded_time(line_format: object) -> None:
    words = " ".join(line_format.words)  # type: ignore[attr-defined]  # a LineFormat
    began = time.process_time()
    for unit in (words, "{", "1", "step ", "loss: ", "Epoch 1: 1%|", "loss=1 ", "[", "lr-a", "'loss':"):
        read(words + unit * 4096)
    assert time.process_time() - began < 5
