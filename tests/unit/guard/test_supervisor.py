"""The rendered wrapper under bash: hostile paths arrive unchanged, and the body runs without a guard."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.cron.cron_dir import CronDir
from opsctl.guard.attempt_record import make_body_env
from opsctl.launch.render import render
from opsctl.state.run_dir import RunDir
from opsctl.state.site_dir import SiteDir
from opsctl.trainer.contract import Env

HOSTILE = "sp ace;$(touch owned)`touch owned`'\"|é漢"
ENV = {"SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3", "SLURMD_NODENAME": "node007"}


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def execute(
    directory: Path, run: Path, python: Path | str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the wrapper as slurmd does; Slurm's commands are replaced by scripts that record their arguments."""
    for name in ("scancel", "scontrol", "squeue"):
        program(directory / "bin" / name, f'printf "{name} %s\\n" "$*" >>"{directory}/asked"; echo 4102444800')
    text = render(
        "slurm/wrapper.slurm.j2", directives=["--nodes=1"], run_dir=str(run), python=str(python), site_file=""
    )
    (directory / "wrapper").write_text(text)
    path = f"{directory}/bin:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(directory / "wrapper")],
        env={"PATH": path, **ENV, **(env or {})},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / HOSTILE)
    run_dir.path.mkdir()
    run_dir.create()
    return run_dir


def test_wrapper_starts_the_guard_of_its_run_directory(tmp_path: Path, run: RunDir) -> None:
    python = program(tmp_path / "py thon$(touch owned)", f'[[ $2 == -c ]] || printf "%s\\n" "$@" >"{tmp_path}/told"')
    execute(tmp_path, run.path, python)
    words = (tmp_path / "told").read_text().splitlines()
    assert words == ["-P", "-m", "opsctl.start_guard", str(run.path)]
    assert not (tmp_path / "owned").exists()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=20))
def test_any_run_directory_reaches_the_guard_unchanged(tmp_path: Path, name: str) -> None:
    python = program(tmp_path / "python", f'[[ $2 == -c ]] || printf "%s" "${{@: -1}}" >"{tmp_path}/told"')
    execute(tmp_path, tmp_path / name, python)
    assert (tmp_path / "told").read_bytes() == os.fsencode(tmp_path / name)


def test_body_without_a_guard_has_every_contract_name(tmp_path: Path, run: RunDir) -> None:
    program(run.body, f'env -0 >"{tmp_path}/env"; exit 85')
    result = execute(tmp_path, run.path, "/nowhere/python")
    env = dict(item.split("=", 1) for item in (tmp_path / "env").read_text().split("\0") if item)
    assert result.returncode == 85
    assert {name for name in Env if name not in env} == set()
    attempt = run.attempt("12_3.0")
    assert (env[Env.ATTEMPT], env[Env.STOP_REQUEST], env[Env.STOP_REASON]) == (
        attempt.name,
        str(attempt.stop_request),
        str(attempt.stop_reason),
    )
    assert (env["TRAIN_ATTEMPT_LOGS"], attempt.deadline.read_text()) == (
        str(run.attempt_logs(attempt.name)),
        "4102444800\n",
    )
    assert attempt.body_exit.read_text() == "85\n"
    assert not (tmp_path / "owned").exists()


def test_body_gets_the_path_of_the_last_tick(run: RunDir) -> None:
    cron_dir = CronDir(SiteDir.of(run.path.parent))
    cron_dir.create()
    cron_dir.touch(datetime(2026, 1, 1, tzinfo=UTC))
    env = make_body_env(run, run.attempt("12_3.0"), {}, minutes_left=9)
    assert Path(env[Env.LAST_TICK]).read_text() == "1767225600\n"


@pytest.mark.parametrize(
    ("switch", "expected"), [("kill", "scancel --state=PENDING 12\n"), ("pause", "scontrol hold 12\n")]
)
def test_switch_without_a_guard_works_as_a_dangling_link(
    tmp_path: Path, run: RunDir, switch: str, expected: str
) -> None:
    program(run.body, f'touch "{tmp_path}/begun"')
    (run.switches / switch).symlink_to("nowhere")
    assert execute(tmp_path, run.path, "/nowhere/python").returncode == 0
    assert (tmp_path / "asked").read_text() == expected
    assert not (tmp_path / "begun").exists()


def test_failed_guard_is_not_started_again(tmp_path: Path, run: RunDir) -> None:
    program(run.body, "exit 1")
    python = program(tmp_path / "python", f'touch "{tmp_path}/tried"')
    assert execute(tmp_path, run.path, python, {"OPSCTL_GUARD_FAILED": "yes"}).returncode == 1
    assert not (tmp_path / "tried").exists()


@pytest.mark.parametrize(("text", "is_warned"), [("[rollback]\nlr_scale = 0.5\n", True), ("name = 't'\n", False)])
def test_wrapper_without_a_guard_tells_of_missing_words(
    tmp_path: Path, run: RunDir, text: str, is_warned: bool
) -> None:
    run.config.write_text(text)
    program(run.body, "true")
    errors = execute(tmp_path, run.path, "/nowhere/python").stderr
    assert ("opsctl: without the guard, the command gets no words of [rollback]" in errors) is is_warned


def test_port_of_another_guard_is_not_used(tmp_path: Path, run: RunDir) -> None:
    program(run.body, f'echo "${{TRAIN_FREE_PORT-none}}" >"{tmp_path}/port"')
    execute(tmp_path, run.path, "/nowhere/python", {"TRAIN_FREE_PORT": "1"})
    assert (tmp_path / "port").read_text() == "none\n"


@pytest.mark.root
def test_body_of_another_user_is_not_run_without_a_guard(tmp_path: Path, run: RunDir) -> None:
    program(run.body, f'touch "{tmp_path}/begun"')
    os.chown(run.body, 1234, -1)
    result = execute(tmp_path, run.path, "/nowhere/python")
    assert (result.returncode, "body.sh belongs to another user and is not run" in result.stderr) == (1, True)
    assert not (tmp_path / "begun").exists()
