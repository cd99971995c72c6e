"""One save directory in many spellings: preflight, guard, watch and rollback read the same one."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.checkpoints.trainer_command.value_files import read_values
from opsctl.guard import dossier
from opsctl.guard.newest_checkpoint import find_newest
from opsctl.host.system import SystemRunner
from opsctl.preflight.recipe import read_recipe
from opsctl.settings.loader import TrainSettings, load_train
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.signs import find_all_directories, find_train_saves
from tests.support.cases import read_cases, read_table

YAML = """%YAML 1.1
---
# nanotron
{}
parallelism: {{dp: 1}}
tokens: {{train_steps: 5}}
"""
SPELLINGS = read_table(__file__, "spellings")
NANOTRON = ("python", "-u", "run_train.py", "--config-file", "config.yaml")


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., RunDir]:
    """Return `launch(*command, **files)`: a train whose directory holds the files, and a checkpoint in saves/."""

    def make(*command: str, files: dict[str, str], environment: dict[str, str] | None = None, more: str = "") -> RunDir:
        run, work = RunDir(tmp_path / "root" / "gpt"), tmp_path / "work"
        run.path.mkdir(parents=True)
        run.create()
        for name, text in files.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(text.replace("PATH", f"{tmp_path}/saves"))
        (tmp_path / "saves" / "checkpoint-10").mkdir(parents=True)
        (tmp_path / "saves" / "checkpoint-10" / "trainer_state.json").write_text("{}")
        variables = "".join(f'{name} = "{value}"\n' for name, value in (environment or {}).items())
        run.config.write_text(
            f'name = "gpt"\ncommand = {json.dumps(command)}\n[setup]\ndirectory = "{work}"\n'
            f'[environment]\n{variables}[slurm]\nnodes = 1\ntime_limit = "60"\n{more}'
        )
        return run

    return make


def load(run: RunDir) -> TrainSettings:
    return load_train(run.config, layout=False)


def find_checkpoint(run: RunDir) -> list[Path]:
    """Return the checkpoint that guard, watch and rollback find."""
    settings = load(run)
    newest = find_newest(run)
    return [
        newest.path.parent if newest else Path(),
        *(save.path.parent for save in find_train_saves(run, settings)),
        *find_all_directories(run, settings)[1:],
    ]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_readers_agree_on_yaml(launch: Callable[..., RunDir], tmp_path: Path, spelling: str) -> None:
    text = SPELLINGS[spelling]
    run = launch(*NANOTRON, files={"config.yaml": YAML.format(text)})
    saves = tmp_path / "saves"
    assert find_checkpoint(run) == [saves] * 3
    save = read_recipe(load(run), tmp_path / "work").save
    assert Path(save.replace("//", "/")) == saves


@pytest.mark.parametrize(*read_cases(__file__, "command_names_the_directory"))
def test_command_names_the_directory(
    launch: Callable[..., RunDir], tmp_path: Path, command: list[str], files: dict[str, str]
) -> None:
    words = [word.replace("PATH", f"{tmp_path}/saves") for word in command]
    run = launch(*words, files={"train.py": "", **files}, environment={"OUT": "/replaced/by/the/script"})
    assert find_checkpoint(run) == [tmp_path / "saves"] * 3


@pytest.mark.parametrize("has_libyaml", [True, False])
def test_values_are_the_texts_that_yaml_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_libyaml: bool
) -> None:
    if not has_libyaml:
        monkeypatch.delattr("yaml.CSafeLoader")
    (tmp_path / "a.yaml").write_text(
        'a: yes\nb: "no"\nc:\nd: [1, 2.5, ~]\ne: &e [x]\nf: *e\n? [k]\n: 1\ng: 2026-01-01\nh: !!bool no\n'
        "i:\n- {j: 1, k: [3]}\n- {j: 2}\nl: &l [*l]\nm: <<\n"
    )
    assert read_values(tmp_path / "a.yaml") == {
        "a": ("true",),
        "b": ("no",),
        "c": ("none",),
        "d": ("1", "2.5", "none"),
        "e": ("x",),
        "f": ("x",),
        "g": ("2026-01-01",),
        "h": ("no",),
        "i.j": ("1",),
        "i.k": ("3",),
        "l": (),
    }


def test_values_follow_an_edit_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text, value in (('{"save": "/a"}', "/a"), ('{"save": "/other"}', "/other")):
        path.write_text(text)
        assert read_values(path) == {"save": (value,)}


def test_yaml_is_imported_for_yaml_only() -> None:
    code = (
        "import sys, opsctl.start_guard, opsctl.guard.dossier, opsctl.preflight.recipe\n"
        "from opsctl.checkpoints.save_directories import TrainCommand, find_in_command\n"
        "from pathlib import Path\n"
        "p = Path('/'); find_in_command(TrainCommand(words=['train.py'], environment={}, directory=p, checkpoints=p))\n"
        "sys.exit('yaml' in sys.modules)\n"
    )
    assert SystemRunner().run((sys.executable, "-P", "-c", code), timeout=250).code == 0


@pytest.mark.parametrize(*read_cases(__file__, "paths_of_a_container_are_found_outside"))
def test_paths_of_a_container_are_found_outside(
    launch: Callable[..., RunDir], tmp_path: Path, command: list[str], files: dict[str, str]
) -> None:
    table = f'[container]\nruntime = "pyxis"\nimage = "/a.sqsh"\nmounts = ["{tmp_path}:/data", "{tmp_path}/work:/code"]'
    run = launch(*command, files={"train.py": "", **files}, more=table)
    assert find_checkpoint(run) == [tmp_path / "saves"] * 3


@pytest.mark.parametrize(*read_cases(__file__, "guard_reads_the_last_step_and_the_time_limit"))
def test_guard_reads_the_last_step_and_the_time_limit(launch: Callable[..., RunDir], name: str, text: str) -> None:
    run = launch("train.py", files={name: text})
    run.body.write_text(f"#!/bin/bash\n# --max_steps 7\nsrun bash -c 'python train.py --config {name}'\n")
    body = dossier._read_body(run)
    options = dossier._list_options(body)
    assert dossier._limits_itself(body, options)
    assert dossier._find_reached_target(100, 1, options) == 100
