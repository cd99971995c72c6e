"""Restarts in place that are disturbed: never two attempts at once, no train lost, nothing left running.

`TRIALS=300 SEED=1 pytest -s tests/endurance/test_restarts.py` prints a line per trial, 12 to 30 s each.
"""

import os
from pathlib import Path

import pytest

from tests.endurance.kills.restarts import run_trials

SEED, TRIALS = int(os.environ.get("SEED", "1")), int(os.environ.get("TRIALS", "20"))


@pytest.mark.timeout(100 * TRIALS)
def test_disturbed_restarts_leave_one_train_and_nothing_else(tmp_path: Path) -> None:
    assert run_trials(tmp_path, range(SEED, SEED + TRIALS)) == []
