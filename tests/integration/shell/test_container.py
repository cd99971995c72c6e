"""Rendered bodies of trains in containers: the runtime gets every word unchanged, and the rank wrapper starts.

Scripts in place of the runtimes record their arguments. tests/integration/slurm/test_container.py runs the real podman.
"""

import os
from pathlib import Path
from typing import Any, get_args

import pytest

from opsctl.base.errors import ConfigError
from opsctl.launch.launch_plan import RANK_WRAPPER_MOUNT
from opsctl.launch.rank_wrapper import start_with
from opsctl.settings.container import ContainerRuntime
from opsctl.settings.loader import TrainSettings, parse
from tests.integration.shell.conftest import Bench
from tests.support.cases import read_cases
from tests.support.hostile_words import HOSTILE_WORDS

RUNTIMES = get_args(ContainerRuntime)
PRINTABLE = [text for text in HOSTILE_WORDS if text.isprintable()]
RECORD = '#!/bin/bash\nprintf "%s\\0" "$@" >"$OUT"\nexit "${CODE:-0}"\n'


@pytest.fixture
def record(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose srun, apptainer and podman record their arguments; srun starts other programs."""
    programs = bench.place / "recorders"
    programs.mkdir(exist_ok=True)
    others = '[[ $* == *--container* ]] || { while [[ $1 == --* ]]; do shift; done; exec "$@"; }\n'
    for name in ("srun", "apptainer", "podman"):
        lines = RECORD.splitlines(keepends=True)
        text = "".join([lines[0], others if name == "srun" else "", *lines[1:]])
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{bench.place / 'bin'}:/usr/bin:/bin")
    return bench


def body(bench: Bench, runtime: str, **table: Any) -> str:
    code = bench.place / "my $code"
    code.mkdir(exist_ok=True)
    container = {"runtime": runtime, "image": "/i.sqsh", **table}
    return bench.script(["dump", *HOSTILE_WORDS], container=container, setup={"directory": str(code)})


def run(bench: Bench, script: str, **env: str) -> int:
    return bench.run(script, PATH=os.environ["PATH"], **env).returncode


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_command_and_options_arrive_unchanged(record: Bench, runtime: str) -> None:
    options = [f"--x={text}" for text in PRINTABLE] + ['--y=$(touch pwned)"$PWD"']
    assert run(record, body(record, runtime, options=options)) == 0
    words = record.dumped
    start = words.index("python3")
    file = record.place / "run dir" / "rank_wrapper.py"
    assert words[start : start + 7] == [*start_with("python3", file, Path(RANK_WRAPPER_MOUNT, "opsctl"))]
    assert words[words.index("--", start) + 1 :] == ["dump", *HOSTILE_WORDS]
    assert words[words.index("--x=sp ace") :][: len(options)] == options
    assert not list(record.place.rglob("pwned"))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("image", ["it's $(touch pwned).sif", "docker://a/b:c", "nvcr.io#nvidia/pytorch:24.05-py3"])
def test_image_arrives_unchanged(record: Bench, runtime: str, image: str) -> None:
    run(record, body(record, runtime, image=image))
    assert [word.removeprefix("--container-image=") for word in record.dumped].count(image) == 1
    assert not list(record.place.rglob("pwned"))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_directories_and_shim_are_mounted(record: Bench, runtime: str) -> None:
    run(record, body(record, runtime, mounts=["/data:/da ta:ro"]))
    words = record.dumped
    options = ("--volume=", "--bind=", "--container-mounts=")
    mounts = [word.partition("=")[2] for word in words if word.startswith(options)]
    run_dir, code = record.place / "run dir", record.place / "my $code"
    split = [mount for text in mounts for mount in text.split(",")]
    assert split[:2] == [f"{run_dir}:{run_dir}", f"{code}:{code}"]
    assert split[2].endswith(f":{RANK_WRAPPER_MOUNT}/opsctl:ro")
    assert split[3] == "/data:/da ta:ro"
    directory = next(word for word in words if word.startswith(("--workdir=", "--pwd=", "--container-workdir=")))
    assert directory.partition("=")[2] == str(code)


def test_podman_passes_the_variables_of_the_environment(record: Bench) -> None:
    script = record.script(["true"], container={"runtime": "podman", "image": "i"}, environment={"MY_KEY": "a b"})
    run(record, script)
    assert {"--env=MY_KEY", "--env=TRAIN_*", "--env=SLURM*"} <= set(record.dumped)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_exit_code_of_the_container_is_that_of_the_body(record: Bench, runtime: str) -> None:
    assert run(record, body(record, runtime), CODE="42") == 42


@pytest.mark.parametrize(*read_cases(__file__, "unsafe_table_is_refused"))
def test_unsafe_table_is_refused(table: dict[str, Any], problem: str) -> None:
    fields = {"name": "t", "command": ["true"], "slurm": {"nodes": 1, "time_limit": "9"}}
    container = {"runtime": "podman", "image": "i", **table}
    with pytest.raises(ConfigError, match=rf"\[container\W+{problem}"):
        parse(TrainSettings, {**fields, "container": container}, "train.toml")


def test_embedded_trainer_in_a_container_is_refused() -> None:
    fields = {"name": "t", "trainer": {}, "slurm": {"nodes": 1, "time_limit": "9"}}
    with pytest.raises(ConfigError, match="needs `command`"):
        parse(TrainSettings, {**fields, "container": {"runtime": "podman", "image": "i"}}, "train.toml")


def test_directory_with_a_colon_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="colon or a comma"):
        bench.script(["true"], container={"runtime": "pyxis", "image": "i"}, setup={"directory": "/a:b"})
