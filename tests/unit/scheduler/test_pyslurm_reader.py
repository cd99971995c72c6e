"""Which reader is chosen, in a Python of its own each time, with or without a pyslurm that it really imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import json
from opsctl.scheduler.pyslurm_reader import choose
from opsctl.ports import Completed, TimedOut
from opsctl.errors import OpsctlError

class Runner:
    env = {env}
    def run(self, argv, *, timeout, stdin="", env=None):
        if "{version}" == "late":
            raise TimedOut(argv, timeout)
        return Completed(argv=tuple(argv), code=0, out="slurm-wlm {version}\\n", err="")

reader, why = choose(Runner())
found = dict(kind=type(reader).__name__, why=why)
if found["kind"] == "Library":
    try:
        found["jobs"] = [repr(job) for job in reader.jobs()]
        found["nodes"] = [repr(node) for node in reader.nodes()]
    except OpsctlError as error:
        found["error"] = [error.exit_code, error.message]
print(json.dumps(found))
"""
STAND_IN = """
class RPCError(Exception):
    pass

class Row:
    def __init__(self, **given):
        self.__dict__.update(given)

TASK = dict(
    name="t", user_name="me", state="RUNNING", state_reason="None", allocated_nodes="node001", num_nodes=1,
    partition="train", comment="opsctl:t:n1", start_time=1795219708, end_time=1795219768, submit_time=1795219700,
    accrue_time=None, exit_code=0, exit_code_signal=None, requeue_count=1,
)
WAITING = TASK | dict(state="PENDING", state_reason="JobHeldUser", allocated_nodes=None, start_time=None)

class Jobs:
    @staticmethod
    def load():
        return {
            1: Row(id=1, array_id=1, array_task_id=None, array_tasks_waiting="1-3", **WAITING),
            2: Row(id=2, array_id=1, array_task_id=None, array_tasks_waiting=None, **TASK),
            3: Row(id=3, array_id=None, array_task_id=None, array_tasks_waiting=None, **TASK),
        }

class Nodes:
    @staticmethod
    def load():
        return {"node001": Row(name="node001", state="IDLE+DRAIN", address="127.0.0.1", reason=None)}
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with a pyslurm 25.11.2 that Python finds, metadata and all."""
    (tmp_path / "pyslurm.py").write_text(STAND_IN)
    record = tmp_path / "pyslurm-25.11.2.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: pyslurm\nVersion: 25.11.2\n")
    return tmp_path


def chosen(site: Path | None, *, version: str = "25.11.7", env: dict[str, str] | None = None) -> dict:
    script = ASK.replace("{version}", version).replace("{env}", repr(env))
    path = f"import sys; sys.path.insert(0, {str(site)!r})\n" if site else ""
    done = subprocess.run(
        [sys.executable, "-c", path + script], capture_output=True, text=True, timeout=250, check=True
    )
    return json.loads(done.stdout)


def test_without_pyslurm_the_commands_are_used():
    assert chosen(None) == {"kind": "Slurm", "why": "Slurm's commands: pyslurm is not installed"}


def test_a_pyslurm_of_another_version_is_never_loaded(site: Path):
    (site / "pyslurm.py").write_text("raise SystemExit('loaded')")
    found = chosen(site, version="22.05.8")
    assert found == {"kind": "Slurm", "why": "Slurm's commands: pyslurm 25.11.2 is not for Slurm 22.05.8"}


def test_where_slurm_does_not_tell_its_version_the_commands_are_used(site: Path):
    assert (
        chosen(site, version="late")["why"] == "Slurm's commands: pyslurm 25.11.2 is not for Slurm of unknown version"
    )


def test_a_slurm_with_an_environment_of_its_own_is_not_read_through_this_process(site: Path):
    found = chosen(site, env={"SLURM_CONF": "/tmp/sandbox/slurm.conf"})
    assert found["why"] == "Slurm's commands: this Slurm is reached through an environment of its own"


def test_a_pyslurm_that_does_not_load_is_left_alone(site: Path):
    (site / "pyslurm.py").write_text("raise ImportError('libslurmfull.so: cannot open')")
    found = chosen(site)
    assert found["why"] == "Slurm's commands: pyslurm 25.11.2 does not load: libslurmfull.so: cannot open"


def test_a_pyslurm_that_fits_is_used(site: Path):
    found = chosen(site)
    assert (found["kind"], found["why"]) == ("Library", "pyslurm 25.11.2")


def test_its_jobs_are_those_of_the_commands(site: Path):
    waiting, task_zero, plain = chosen(site)["jobs"]
    assert "id='1', array='1', tasks=(1, 2, 3)" in waiting
    assert "state=<JobState.PENDING: 'PENDING'>, reason='JobHeldUser', nodes=''" in waiting
    assert "id='2', array='1', tasks=(0,)" in task_zero
    assert "reason='', nodes='node001'" in task_zero
    assert "accrued=None, exit_code='0:0', restarts=1" in task_zero
    assert "id='3', array='3', tasks=()" in plain


def test_its_nodes_are_those_of_the_commands(site: Path):
    assert chosen(site)["nodes"] == ["Node(name='node001', state='IDLE+DRAIN', address='127.0.0.1', reason='')"]


def test_a_library_that_gets_no_answer_is_unreachable(site: Path):
    down = "def down():\n    raise RPCError('x')\n\nJobs.load = staticmethod(down)\n"
    (site / "pyslurm.py").write_text(STAND_IN + down)
    assert chosen(site)["error"] == [75, "pyslurm got no answer: x"]
