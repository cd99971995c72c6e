"""Ordinary users: a sandbox of their own, and root's sandbox from outside."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from other_users import skip_unless_others_may_run

from opsctl.errors import SandboxError
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.config import Spec
from opsctl.sandbox.record import Places

NOBODY = 65534

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user; as one, every other test is this"),
]


@pytest.fixture
def nobody(_programs: None) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a command as an ordinary user, with a home of its own and a PATH without sbin."""
    with tempfile.TemporaryDirectory(prefix="opsctl-nobody-") as home:
        os.chown(home, NOBODY, NOBODY)
        base = {"HOME": home, "PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

        def run(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                argv, user=NOBODY, group=NOBODY, extra_groups=[], cwd=home, env=base | (env or {}),
                capture_output=True, text=True, timeout=250, check=False,
            )  # fmt: skip

        yield run


@pytest.fixture
def opsctl() -> tuple[str, ...]:
    """`opsctl sandbox` for that user."""
    skip_unless_others_may_run()
    return (sys.executable, "-m", "opsctl", "sandbox")


def test_an_ordinary_user_has_a_sandbox_of_its_own(
    nobody: Callable[..., subprocess.CompletedProcess[str]], opsctl: tuple[str, ...]
) -> None:
    up = nobody(*opsctl, "up", "--nodes", "2")
    try:
        assert up.returncode == 0, up.stderr
        script = (
            f"eval \"$({shlex.join(opsctl)} env)\"; srun -N2 --gres=gpu:2 sh -c 'echo $(id -un) $CUDA_VISIBLE_DEVICES'"
        )
        assert nobody("sh", "-c", script).stdout == "nobody 0,1\nnobody 0,1\n"
    finally:
        down = nobody(*opsctl, "down")
    assert down.stdout == "sandbox 'default' is down: 5 processes ended, none left\n"


def test_an_ordinary_user_runs_a_command_on_a_sandbox_in_namespaces(
    nobody: Callable[..., subprocess.CompletedProcess[str]], opsctl: tuple[str, ...]
) -> None:
    done = nobody(*opsctl, "run", "--nodes", "2", "--", "sh", "-c", "srun -N2 id -un; exit 9")
    assert (done.returncode, done.stdout) == (9, "nobody\nnobody\n"), done.stderr


def test_another_user_may_submit_to_roots_sandbox_and_not_read_its_keys(
    slurm: Sandbox, nobody: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert nobody("srun", "-N2", "id", "-un", env=slurm.env()).stdout == "nobody\nnobody\n"
    job = nobody("sbatch", "--parsable", "--wait", "--output=out", "--wrap=id -un", env=slurm.env())
    assert job.returncode == 0, job.stderr
    assert nobody("cat", "out").stdout == "nobody\n"
    assert nobody("cat", str(slurm.record.site.home / "munge.key")).returncode != 0
    assert nobody("scontrol", "update", "nodename=node001", "state=drain", "reason=x", env=slurm.env()).returncode != 0


def test_a_run_directory_that_somebody_else_made_is_refused(
    slurm: Sandbox, nobody: Callable[..., subprocess.CompletedProcess[str]], home: Path
) -> None:
    run = Places.default().run_directory("squatted")
    assert nobody("mkdir", str(run)).returncode == 0
    try:
        with pytest.raises(SandboxError, match=f"{run} is there already and is not this sandbox's"):
            Sandbox.up(Spec(name="squatted"), clock=slurm.clock, runner=slurm.runner)
        assert run.exists()
    finally:
        run.rmdir()
