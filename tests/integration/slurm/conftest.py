"""A real Slurm for tests: one per pytest process, private to it, ended by id when the tests end."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.base.errors import MissingProgram, SandboxError
from opsctl.host.system import SystemClock, SystemRunner
from opsctl.sandbox.cluster import Sandbox
from opsctl.sandbox.programs import find_programs
from opsctl.sandbox.record import Places
from opsctl.sandbox.slurm_conf import SandboxSpec
from tests.support.other_users import open_to_other_users
from tests.support.trains import Trains, trains_on

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")


@pytest.fixture(scope="session", autouse=True)
def _open_to_other_users() -> None:
    if os.geteuid() == 0:
        open_to_other_users()


@pytest.fixture(scope="session")
def places() -> Iterator[Places]:
    """Directories for the sandboxes of this session. Other users can enter the parent directory."""
    root = Path(tempfile.mkdtemp(prefix=f"opsctl-test-{WORKER}-"))
    root.chmod(0o755)
    yield Places(state=root / "state", cache=root / "cache")
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def _programs() -> None:
    """Skip the test, with the reason, where Slurm is not installed. In CI the test fails instead."""
    try:
        find_programs(os.environ.get("PATH", ""), accounting=False)
    except MissingProgram as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{missing.message}; {missing.hint}")


@pytest.fixture(scope="session")
def _accounting(places: Places, _programs: None) -> None:
    """Skip the test, with the reason, where slurmdbd is not installed or does not work with the installed MariaDB."""
    try:
        find_programs(os.environ.get("PATH", ""), accounting=True)
    except MissingProgram as missing:
        pytest.skip(f"accounting is {missing.message}")
    spec = SandboxSpec(name=f"accounting-{WORKER}", nodes=1, accounting=True, fast=True)
    try:
        Sandbox.up(spec, places=places, clock=SystemClock(), runner=SystemRunner()).down(grace=0.2)
    except SandboxError as error:
        if "MariaDB client library" not in error.message:
            raise
        pytest.skip("this slurmdbd does not work with this MariaDB client library")


@pytest.fixture(scope="session")
def slurm(places: Places, _programs: None) -> Iterator[Sandbox]:
    """A Slurm of 4 nodes with 2 GPUs each and fast timers. A test must leave no jobs and no drained nodes."""
    spec = SandboxSpec(name=f"shared-{WORKER}", nodes=4, gpus_per_node=2, fast=True)
    sandbox = Sandbox.up(spec, places=places, clock=SystemClock(), runner=SystemRunner())
    yield sandbox
    sandbox.down(grace=0.2)


@pytest.fixture
def trains(slurm: Sandbox) -> Iterator[Trains]:
    """A root of trains in the queue of the shared Slurm."""
    with trains_on(slurm) as trains:
        yield trains


@pytest.fixture
def fresh_slurm(places: Places, _programs: None) -> Iterator[Callable[..., Sandbox]]:
    """A function that starts a Slurm for one test, for tests that break Slurm: `fresh_slurm(nodes=2)`."""
    made: list[Sandbox] = []

    def up(**wanted: object) -> Sandbox:
        spec = SandboxSpec(**{"name": f"fresh-{WORKER}-{len(made)}", "nodes": 2, "fast": True, **wanted})  # type: ignore[arg-type]  # fields of a SandboxSpec
        made.append(Sandbox.up(spec, places=places, clock=SystemClock(), runner=SystemRunner()))
        return made[-1]

    yield up
    for sandbox in made:
        sandbox.down(grace=0.2)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory for one test, so that no test writes to the user's."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    return home
