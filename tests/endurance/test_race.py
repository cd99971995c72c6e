"""A minute of the race: a GPU breaks, and nobody is awake. `pytest tests/endurance/test_race.py`"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def race() -> dict[str, dict]:
    words = ["--seconds", "60", "--faults", "gpu", "--contender", "plain", "--contender", "opsctl", "--json"]
    argv = [sys.executable, str(ROOT / "benchmarks" / "effective_time.py"), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=True)
    return {load["contender"]: load for load in json.loads(done.stdout)}


def test_the_plain_recipe_burns_its_tasks_on_a_broken_gpu(race: dict[str, dict]) -> None:
    assert race["plain"]["share"] < 0.1
    assert race["plain"]["attempts"] > 5


def test_opsctl_goes_on_without_the_node_after_its_second_failure(race: dict[str, dict]) -> None:
    assert race["opsctl"]["attempts"] == 3  # no node is excluded on one log line
    assert race["opsctl"]["share"] > 0.6


def test_every_second_is_training_or_lost_to_one_cause(race: dict[str, dict]) -> None:
    for result in race.values():
        assert result["share"] * 60 + sum(result["lost"].values()) == pytest.approx(60)
