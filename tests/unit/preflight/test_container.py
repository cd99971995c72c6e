"""What preflight says about trains in containers: files of the mounted directories, image, mounts."""

import json
from pathlib import Path

import pytest

from opsctl.actions.check_train import check_train
from opsctl.app import build
from opsctl.preflight.problem import Problem
from tests.support.cases import read_cases


def find_problems(tmp_path: Path, command: list[str], *, directory: str = "code", **container: object) -> list[Problem]:
    """Return the problems of a train in a container, without Slurm. `code` and `data` hold a script each."""
    for name in ("code", "data", "image.sif"):
        (tmp_path / name).mkdir(exist_ok=True)
    for name in ("code/train.py", "data/train.py"):
        (tmp_path / name).touch()
    site = tmp_path / "site.toml"
    site.write_text(f"root = '{tmp_path}/trains'\n")
    table = {"runtime": "apptainer", "image": f"{tmp_path}/image.sif", **container}
    lines = ["name = 't'", f"command = {json.dumps(command)}", "[slurm]", "nodes = 1", "time_limit = '5'"]
    lines += ["[setup]", f"directory = '{tmp_path / directory if directory else ''}'", "[container]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    (tmp_path / "t.toml").write_text("\n".join(lines))
    return list(check_train(build(site), tmp_path / "t.toml").problems)


@pytest.mark.parametrize(*read_cases(__file__, "missing_script_in_a_mounted_directory_is_found"))
def test_missing_script_in_a_mounted_directory_is_found(tmp_path: Path, script: str, is_missing: bool) -> None:
    data = f"{tmp_path}/data"
    mounts = [f"{data}:{data}", f"{data}:{tmp_path}/code/inside"]
    problems = find_problems(tmp_path, ["python", script.replace("TMP", str(tmp_path))], mounts=mounts)
    missing = [problem for problem in problems if problem.check == "files"]
    assert [problem.severity for problem in missing] == ["error"] * is_missing


def test_start_in_the_run_directory_is_checked_too(tmp_path: Path) -> None:
    problems = find_problems(tmp_path, ["python", "gone.py"], directory="")
    assert [problem.what for problem in problems if problem.check == "files"] == [
        "command: gone.py does not exist in its run directory"
    ]


def test_program_of_the_image_is_not_searched(tmp_path: Path) -> None:
    problems = find_problems(tmp_path, ["no-such-program-anywhere", "train.py"])
    assert not [problem for problem in problems if problem.check == "files"]


def test_missing_source_of_a_mount_is_a_warning(tmp_path: Path) -> None:
    mounts = [f"{tmp_path}/gone:/a:ro", f"{tmp_path}/data:/b"]
    problems = find_problems(tmp_path, ["python", "train.py"], mounts=mounts)
    found = [(problem.severity, problem.what) for problem in problems if "mounts" in problem.what]
    assert found == [("warning", f"[container] mounts: {tmp_path}/gone does not exist on this machine")]
