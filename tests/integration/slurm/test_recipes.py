"""The recipes of foreign trainers in examples/, checked against a real Slurm."""

import json
import re
from pathlib import Path

import pytest

from opsctl.settings.loader import load_train, read_toml
from tests.support.cases import read_table
from tests.support.trains import Trains

EXAMPLES = Path(__file__).parents[3] / "examples"
RECIPES = read_table(__file__, "recipes")


def make_recipe(trains: Trains, name: str) -> Path:
    """Copy a recipe, sized for the sandbox, with the files that it names below the test's directory."""
    home = trains.place / "home"
    (home / "env" / "bin").mkdir(parents=True)
    (home / "env" / "bin" / "activate").touch()
    (home / "code").mkdir()
    text = (EXAMPLES / f"{name}.toml").read_text().replace("/home/me", str(home))
    for key, value in {"nodes": 2, "processes_per_node": 2, "cpus_per_process": 1, "gpus_per_node": 2}.items():
        text = re.sub(rf"(?m)^{key} = \d+", f"{key} = {value}", text)
    # Preflight would refuse checkpoints larger than this disk, and a corpus that does not exist.
    text = re.sub(r'"--num-layers", "\d+"', '"--num-layers", "2"', text)
    text = re.sub(r'(?m)^  "--data-path".*\n', "", text)
    path = trains.place / f"{name}.toml"
    path.write_text(text)
    for word in load_train(path).command:
        if word.endswith((".py", ".sh", ".yaml")):
            (home / "code" / word).write_text("# opsctl_contract\n")
    return path


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_passes_preflight_and_a_dry_run(trains: Trains, name: str) -> None:
    recipe = make_recipe(trains, name)
    report = json.loads(trains.opsctl("preflight", recipe, "--json"))
    assert [problem for problem in report["findings"] if problem["severity"] == "error"] == []
    train = read_toml(recipe)["name"]
    planned = trains.opsctl("launch", recipe, "--dry-run")
    assert f"as train {train}" in planned
    assert "opsctl.guard.rank" in planned
    assert not trains.run(train).exists


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_says_how_the_trainer_stops_and_whether_it_was_run(name: str) -> None:
    comment = [line for line in (EXAMPLES / f"{name}.toml").read_text().splitlines() if line.startswith("#")]
    assert any("two lines" in line.lower() or "no line" in line.lower() for line in comment)
    assert any(re.match(r"# (Not run: |Run in opsctl's tests)", line) for line in comment)


def test_torchtitan_runs_with_the_lines_of_its_recipe() -> None:
    recipe = (EXAMPLES / "torchtitan.toml").read_text()
    trainer = (Path(__file__).parents[2] / "support" / "library_trainers" / "torchtitan_trainer.py").read_text()
    lines = re.findall(r"(?m)^#   ((?:\w+ = |self|if request).*)$", recipe)
    assert len(lines) == 5
    assert [line for line in lines if line not in trainer] == []
