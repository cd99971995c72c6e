"""Lines of scripts of one's own. `pytest tests/unit/telemetry/progress/test_line_formats.py`"""

from __future__ import annotations

import time

import pytest

from opsctl.telemetry.progress.log_formats import load_formats
from opsctl.telemetry.progress.step_reader import StepReader


def read(line: str) -> dict[str, float]:
    return StepReader().read(line.encode()).values


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("step 12/90 loss 2.5", {"step": 12, "last": 90, "loss": 2.5}),
        ("step=12 loss=2.5 lr=1e-4", {"step": 12, "loss": 2.5, "lr": 1e-4}),
        ("Step: 12 | Loss: 2.5 | dt: 250ms", {"step": 12, "loss": 2.5, "step_s": 0.25}),
        ("iter 1200 train loss 2.5 (0.5 s/it)", {"step": 1200, "loss": 2.5}),
        ("INFO [step 3 of 9] loss=nan", {"step": 3, "last": 9}),
        ("[gpu07:3]: global_step: 7, loss: 1e+02, tokens/s: 12,345", {"step": 7, "loss": 100, "tokens_per_s": 12345}),
    ],
)
def test_own_line_is_read(line: str, values: dict[str, float]) -> None:
    stated = read(line)
    assert {name: stated.get(name) for name in values} == values


@pytest.mark.parametrize(
    "line",
    [
        "validation at step 12: loss 2.5",
        "eval step 3/10 loss 2.5",
        "saving checkpoint at step 12 to /x, loss 2.5",
        "resumed at step 12 with loss 2.5",
        "step 12",
        "epoch=1-step=500.ckpt loss 2",
        "Map: 100%|####| 5/5 [00:01<00:00, 5.00it/s]",
        "Loading checkpoint shards: 100%|####| 5/5 [00:01<00:00, 5.00it/s]",
        "Evaluating: 40%|####| 2/5 [00:01<00:00, 5.00it/s]",
        "100%|####| 5/5 [00:01<00:00, 5.00it/s]\x1b[A",
        "a trainer that says nothing",
    ],
)
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
