"""Ordinary users with their own sandbox, and with the sandbox of root or of another user."""

import json
import os
import pwd
import secrets
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opsctl.base.errors import SandboxError
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from tests.support.other_users import skip_unless_others_may_run
from tests.support.slurms import OPSCTL, wait_until

OWNER = pwd.getpwnam("games")
"""The ordinary user of a sandbox. Not nobody: Slurm 26.05 takes nobody for no valid SlurmUser."""
STRANGER = pwd.getpwnam("daemon")
"""Another ordinary user. Every Debian, Ubuntu and RHEL has both."""

pytestmark = pytest.mark.root


Run = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def commands_of(user: pwd.struct_passwd, **variables: str) -> Iterator[Run]:
    """Provide a function that runs a command as a user, in an own home with these variables."""
    with tempfile.TemporaryDirectory(prefix=f"opsctl-{user.pw_name}-") as home:
        os.chown(home, user.pw_uid, user.pw_gid)

        def run(*argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                argv,
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=[],
                cwd=home,
                env={"HOME": home, **variables, **(env or {})},
                capture_output=True,
                text=True,
                timeout=250,
                check=False,
            )

        yield run


@pytest.fixture
def owner(_programs: None) -> Iterator[Run]:
    """A function that runs a command as an ordinary user with a PATH without sbin."""
    with commands_of(OWNER, PATH="/usr/bin:/bin", PYTHONPATH=os.pathsep.join(filter(None, sys.path))) as run:
        yield run


@pytest.fixture
def opsctl() -> tuple[str, ...]:
    """The command line of `opsctl sandbox` for that user."""
    skip_unless_others_may_run()
    return (sys.executable, "-m", "opsctl", "sandbox")


def test_ordinary_user_has_a_sandbox(owner: Run, opsctl: tuple[str, ...]) -> None:
    up = owner(*opsctl, "up", "--nodes", "2")
    try:
        assert up.returncode == 0, up.stderr
        script = (
            f"eval \"$({shlex.join(opsctl)} env)\"; srun -N2 --gres=gpu:2 sh -c 'echo $(id -un) $CUDA_VISIBLE_DEVICES'"
        )
        assert owner("sh", "-c", script).stdout == f"{OWNER.pw_name} 0,1\n" * 2
    finally:
        down = owner(*opsctl, "down")
    assert down.stdout == "sandbox 'default' is down: 5 processes ended, none left\n"


def test_ordinary_user_runs_a_command_in_a_sandbox(owner: Run, opsctl: tuple[str, ...]) -> None:
    program = shlex.join(opsctl[:-1])
    launch = f"{program} init --example counting >out && {program} launch train.toml --dry-run >out; echo $?"
    done = owner(*opsctl, "run", "--nodes", "2", "--", "sh", "-c", f"srun -N2 id -un; {launch}; exit 9")
    assert (done.returncode, done.stdout) == (9, f"{OWNER.pw_name}\n" * 2 + "0\n"), done.stderr


def test_user_submits_to_root_sandbox_without_its_keys(slurm: Sandbox, owner: Run) -> None:
    assert owner("srun", "-N2", "id", "-un", env=slurm.env()).stdout == f"{OWNER.pw_name}\n" * 2
    job = owner("sbatch", "--parsable", "--wait", "--output=out", "--wrap=id -un", env=slurm.env())
    assert job.returncode == 0, job.stderr
    assert owner("cat", "out").stdout == f"{OWNER.pw_name}\n"
    assert owner("cat", str(slurm.record.site.home / "munge.key")).returncode != 0
    assert owner("scontrol", "update", "nodename=node001", "state=drain", "reason=x", env=slurm.env()).returncode != 0


def test_run_directory_of_another_user_is_refused(slurm: Sandbox, owner: Run, home: Path) -> None:
    run = Places.default().run_directory("squatted")
    assert owner("mkdir", str(run)).returncode == 0
    try:
        with pytest.raises(SandboxError, match=f"{run} exists and does not belong to this sandbox"):
            Sandbox.up(SandboxSpec(name="squatted"), clock=slurm.clock, runner=slurm.runner)
        assert run.exists()
    finally:
        run.rmdir()


@pytest.fixture
def stranger(_programs: None) -> Iterator[Run]:
    """A function that runs a command as another ordinary user."""
    with commands_of(STRANGER, PATH="/usr/bin:/bin:/usr/sbin:/sbin", SLURM_TIMEOUT="5") as run:
        yield run


@pytest.fixture
def users_conf(owner: Run, opsctl: tuple[str, ...]) -> Iterator[Path]:
    """The slurm.conf of an ordinary user's running sandbox."""
    up = owner(*opsctl, "up", "--nodes", "1", "--fast", "--json")
    assert up.returncode == 0, up.stderr
    yield Path(json.loads(up.stdout)["env"]["SLURM_CONF"])
    owner(*opsctl, "down")


def test_sandbox_of_a_user_is_closed_to_other_users(users_conf: Path, owner: Run, stranger: Run) -> None:
    env = {"SLURM_CONF": str(users_conf)}
    assert owner("srun", "id", "-un", env=env).stdout == f"{OWNER.pw_name}\n"
    done = stranger("timeout", "5", "srun", "-n1", "id", env=env)  # srun asks for a configuration for up to a minute
    assert (done.returncode != 0, done.stdout) == (True, "")
    for path in (users_conf, users_conf.parent / "munge.socket", users_conf.parent / "spool"):
        assert stranger("ls", str(path)).returncode != 0
    assert stat.S_IMODE(users_conf.parent.stat().st_mode) == 0o700


def run_as_stranger(stranger: Run, conf: Path, *argv: str, auth: str) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command as the stranger with the owner's slurm.conf, except for its credentials."""
    lines = [
        line for line in conf.read_text().splitlines() if not line.startswith(("AuthType", "CredType", "AuthInfo"))
    ]
    text = "\n".join((*lines, auth, ""))
    home = Path(stranger("pwd").stdout.strip())
    (home / "slurm.conf").write_text(text)
    (home / "cgroup.conf").write_text("")
    (home / "gres.conf").write_text("")
    (home / "slurm.conf").chmod(0o644)
    return stranger(*argv, env={"SLURM_CONF": str(home / "slurm.conf")})


COMMANDS = (("srun", "-n1", "id"), ("sinfo",), ("scontrol", "ping"), ("scontrol", "shutdown"), ("sbatch", "--wrap=id"))


def check_refused(owner: Run, stranger: Run, users_conf: Path, auth: str) -> None:
    """Check that no command of the stranger reaches the sandbox, and that those of its owner still do."""
    for argv in COMMANDS:
        done = run_as_stranger(stranger, users_conf, *argv, auth=auth)
        assert "uid=" not in done.stdout, argv
        assert "idle" not in done.stdout, argv
        assert done.returncode != 0 or "DOWN" in done.stdout, done.stdout + done.stderr
        assert owner("srun", "id", "-un", env={"SLURM_CONF": str(users_conf)}).stdout == f"{OWNER.pw_name}\n", argv


def test_guessed_configuration_without_credentials_is_refused(users_conf: Path, owner: Run, stranger: Run) -> None:
    check_refused(owner, stranger, users_conf, "AuthType=auth/none\nCredType=cred/none")


def test_guessed_configuration_with_another_munge_is_refused(users_conf: Path, owner: Run, stranger: Run) -> None:
    home = Path(stranger("pwd").stdout.strip())
    (home / "key").write_bytes(secrets.token_bytes(128))
    (home / "key").chmod(0o600)
    os.chown(home / "key", STRANGER.pw_uid, STRANGER.pw_gid)
    munged = subprocess.Popen(
        f"munged --foreground --force --origin=127.0.0.1 --socket={home}/socket --key-file={home}/key"
        f" --pid-file={home}/pid --seed-file={home}/seed".split(),
        user=STRANGER.pw_uid,
        group=STRANGER.pw_gid,
        extra_groups=[],
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/sbin:/usr/bin"},
    )
    try:
        wait_until((home / "socket").exists)
        auth = f"AuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket={home}/socket"
        check_refused(owner, stranger, users_conf, auth)
    finally:
        munged.terminate()
        munged.wait(250)


def test_sandbox_of_run_has_a_private_network(owner: Run, opsctl: tuple[str, ...]) -> None:
    if owner("unshare", "--user", "--map-root-user", "--net", "true").returncode:
        pytest.skip("ordinary users may make no namespaces here")
    script = "grep -o '^AuthType=.*' $SLURM_CONF; readlink /proc/self/ns/net"
    done = owner(*opsctl, "run", "--nodes", "1", "--", "sh", "-c", script)
    auth, network = done.stdout.split()
    assert auth == "AuthType=auth/none"
    assert Path(network) != Path("/proc/self/ns/net").readlink()


def test_sandbox_of_run_without_namespaces_is_private(
    owner: Run, opsctl: tuple[str, ...], tmp_path: Path, slurm: Sandbox
) -> None:
    unshare = Path(owner("pwd").stdout.strip()) / "unshare"
    unshare.write_text("#!/bin/sh\nexit 1\n")
    unshare.chmod(0o755)
    script = "stat -c %a $(dirname $SLURM_CONF); grep -o '^AuthType=.*' $SLURM_CONF"
    env = {"PATH": f"{unshare.parent}:/usr/bin:/bin"}
    done = owner(*opsctl, "run", "--nodes", "1", "--", "sh", "-c", script, env=env)
    assert done.stdout.split() == ["700", "AuthType=auth/munge"], done.stderr
    as_root = subprocess.run(
        [*OPSCTL, "run", "--nodes", "1", "--", "sh", "-c", script],
        env={**os.environ, "PATH": f"{unshare.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert as_root.stdout.split() == ["700", "AuthType=auth/munge"], as_root.stderr
