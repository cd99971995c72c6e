"""Choice of the reader, in a separate Python process, with and without an importable pyslurm."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHOOSE_SCRIPT = """
import json
from opsctl.slurm.pyslurm_reader import choose
from opsctl.base.ports import Completed, TimedOut
from opsctl.base.errors import OpsctlError

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
FAKE_PYSLURM = """
class RPCError(Exception):
    pass

class Row:
    def __init__(self, **fields):
        self.__dict__.update(fields)

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
    """A directory from which Python imports a pyslurm 25.11.2 with its metadata."""
    (tmp_path / "pyslurm.py").write_text(FAKE_PYSLURM)
    record = tmp_path / "pyslurm-25.11.2.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: pyslurm\nVersion: 25.11.2\n")
    return tmp_path


def choose(site: Path | None, *, version: str = "25.11.7", env: dict[str, str] | None = None) -> dict:
    script = CHOOSE_SCRIPT.replace("{version}", version).replace("{env}", repr(env))
    path = f"import sys; sys.path.insert(0, {str(site)!r})\n" if site else ""
    done = subprocess.run(
        [sys.executable, "-c", path + script], capture_output=True, text=True, timeout=250, check=True
    )
    return json.loads(done.stdout)


def test_commands_are_used_without_pyslurm():
    assert choose(None) == {"kind": "Slurm", "why": "Slurm's commands: pyslurm is not installed"}


def test_pyslurm_of_another_version_is_never_loaded(site: Path):
    (site / "pyslurm.py").write_text("raise SystemExit('loaded')")
    result = choose(site, version="22.05.8")
    assert result == {"kind": "Slurm", "why": "Slurm's commands: pyslurm 25.11.2 is not for Slurm 22.05.8"}


def test_commands_are_used_for_an_unknown_version(site: Path):
    assert (
        choose(site, version="late")["why"] == "Slurm's commands: pyslurm 25.11.2 is not for Slurm of unknown version"
    )


def test_commands_are_used_for_an_own_environment(site: Path):
    result = choose(site, env={"SLURM_CONF": "/tmp/sandbox/slurm.conf"})
    assert result["why"] == "Slurm's commands: this Slurm is reached through an environment of its own"


def test_pyslurm_that_does_not_load_is_not_used(site: Path):
    (site / "pyslurm.py").write_text("raise ImportError('libslurmfull.so: cannot open')")
    result = choose(site)
    assert result["why"] == "Slurm's commands: pyslurm 25.11.2 does not load: libslurmfull.so: cannot open"


def test_matching_pyslurm_is_used(site: Path):
    result = choose(site)
    assert (result["kind"], result["why"]) == ("Library", "pyslurm 25.11.2")


def test_pyslurm_jobs_equal_those_of_the_commands(site: Path):
    waiting, task_zero, plain = choose(site)["jobs"]
    assert "id='1', array='1', tasks=(1, 2, 3)" in waiting
    assert "state=<JobState.PENDING: 'PENDING'>, reason='JobHeldUser', nodes=''" in waiting
    assert "id='2', array='1', tasks=(0,)" in task_zero
    assert "reason='', nodes='node001'" in task_zero
    assert "accrued=None, exit_code='0:0', restarts=1" in task_zero
    assert "id='3', array='3', tasks=()" in plain


def test_pyslurm_nodes_equal_those_of_the_commands(site: Path):
    assert choose(site)["nodes"] == ["Node(name='node001', state='IDLE+DRAIN', address='127.0.0.1', reason='')"]


def test_pyslurm_without_an_answer_is_unreachable(site: Path):
    down = "def down():\n    raise RPCError('x')\n\nJobs.load = staticmethod(down)\n"
    (site / "pyslurm.py").write_text(FAKE_PYSLURM + down)
    assert choose(site)["error"] == [75, "pyslurm got no answer: x"]
