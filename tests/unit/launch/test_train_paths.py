"""Relative paths of [trainer] begin at the file that names them; a copy in a run directory keeps its launch's."""

import json
from pathlib import Path

import pytest

from opsctl.launch.launch_plan import trainer_json
from opsctl.launch.train_paths import find_launched_paths, load_resolved, resolve_paths
from opsctl.settings.loader import load_train
from opsctl.state.run_dir import RunDir
from opsctl.train import Train
from opsctl.trainer import dry_run
from tests.support.cases import read_table

TRAIN = read_table(__file__, "train")
PATHS = ["data/corpus", "data/en", "../fr", "/abs/code", "data/late", "data/valid", "hf/model"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "t.toml").write_text(TRAIN)
    monkeypatch.chdir(elsewhere)
    return project


def launch(project: Path, run: RunDir) -> str:
    """Write what a launch of t.toml writes; return the settings of the trainer."""
    run.create()
    run.config.write_text(TRAIN)
    text = trainer_json(load_resolved(project / "t.toml"), Path.cwd())
    run.trainer_config.write_text(text)
    return text


def list_paths(text: str) -> list[str]:
    settings = json.loads(text)
    data = settings["data"]
    prefixes = [corpus["prefix"] for corpus in (*data["blend"], *data["stages"][0]["blend"])]
    return [data["prefix"], *prefixes, settings["evaluation"]["sets"][0]["prefix"], settings["weights"]]


def test_paths_begin_at_the_file(project: Path) -> None:
    text = trainer_json(load_resolved(Path("../project/t.toml")), Path.cwd())
    assert [Path(path).resolve() for path in list_paths(text)] == [(project / path).resolve() for path in PATHS]


def test_python_api_reads_paths_of_the_file(project: Path) -> None:
    settings = Train.from_toml(project / "t.toml").settings.trainer
    assert settings
    assert settings["weights"] == str(project / "hf/model")


@pytest.mark.parametrize("place", ["", "revisions/0001"])
def test_copy_in_a_run_directory_keeps_its_paths(project: Path, tmp_path: Path, place: str) -> None:
    copy = RunDir(tmp_path / "trains" / "t" / place)
    launched = launch(project, copy)
    assert trainer_json(load_resolved(copy.config), Path.cwd()) == launched


def test_own_train_toml_beside_another_trainer_json(project: Path) -> None:
    own = project / "train.toml"
    own.write_text(TRAIN)
    for text in ("{}", "[]", '{"data": 3}', '{"data": {"prefix": "x"}}', "{"):
        (project / "trainer.json").write_text(text)
        assert list_paths(trainer_json(load_resolved(own), Path.cwd()))[1] == str(project / "data/en")


def test_edited_copy_elsewhere_keeps_known_paths(project: Path, tmp_path: Path) -> None:
    run, changed = RunDir(tmp_path / "trains" / "t"), tmp_path / "changed.toml"
    launch(project, run)
    changed.write_text(TRAIN.replace("data/late", "data/new").replace("steps = 10", "steps = 20"))
    after = load_train(changed)
    known = find_launched_paths(load_train(run.config), run.config) | find_launched_paths(after, changed)
    paths = list_paths(trainer_json(resolve_paths(after, tmp_path, known=known), Path.cwd()))
    assert paths[1] == str(project / "data/en")
    assert paths[4:] == [str(tmp_path / "data/new"), str(project / "data/valid"), str(project / "hf/model")]


def test_dry_run_of_the_trainer_reads_paths_of_the_file(project: Path) -> None:
    assert dry_run.read(Path("../project/t.toml"))[0].data.blend[0].prefix == f"{Path.cwd()}/../project/data/en"


def test_path_that_cannot_be_looked_up_begins_at_the_file(project: Path) -> None:
    long = "x" * 300
    (project / "t.toml").write_text(TRAIN.replace("hf/model", long))
    assert list_paths(trainer_json(load_resolved(project / "t.toml"), Path.cwd()))[-1] == str(project / long)
    lines, problems = dry_run.report(dry_run.read(project / "t.toml")[0], 1)
    assert lines
    assert "File name too long" in " ".join(problems)


@pytest.mark.parametrize(("there", "here"), [("data/en.idx", "data/en.idx"), ("data/late.idx", "data/en.idx")])
def test_path_that_exists_is_taken(project: Path, there: str, here: str) -> None:
    """Whoever launches configs/t.toml in the project's directory may name paths as seen from there."""
    for place in (project / there, Path(here)):
        place.parent.mkdir(exist_ok=True)
        place.touch()
    base = Path.cwd() if there != here else project
    found = list_paths(trainer_json(load_resolved(project / "t.toml"), Path.cwd()))
    assert found[1] == str(base / "data/en")
    assert found[-1] == str(project / "hf/model")
