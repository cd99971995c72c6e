"""Files of a user with the names of modules of opsctl or Python, in the working directory or on PYTHONPATH."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.guard.reproduction import FREEZE, LIST
from tests.packaging.conftest import ROOT, Installed
from tests.support.cases import read_table

MODULES = read_table(__file__, "modules")
PACKAGES = ("trainer", "watchdogs", "templates", "cron", "launch")
COMMANDS = (["--help"], ["status"], ["watch", "--once"], ["doctor"])
UNPROTECTED = re.compile(r"""(?<!"-P", )"-m", "(?:opsctl|deepspeed|pip)\b""")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A directory whose modules leave a mark when they are imported, and end the importing process."""
    place = tmp_path / "code"
    place.mkdir()
    text = f"open({str(tmp_path / 'hijacked')!r}, 'a').write(__name__ + chr(10))\nraise SystemExit('hijacked')\n"
    for name in MODULES:
        (place / f"{name}.py").write_text(text)
    for name in PACKAGES:
        (place / name).mkdir()
        (place / name / "__init__.py").write_text(text)
    return place


@pytest.fixture(autouse=True)
def check_marks(tmp_path):
    yield
    mark = tmp_path / "hijacked"
    assert not mark.exists(), f"imported: {mark.read_text().split()}"


@pytest.mark.long
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_working_directory_is_not_imported(installed: Installed, hostile, words):
    out = installed.run("opsctl", *words, cwd=hostile, code=None)
    assert "hijacked" not in out


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_pythonpath_is_not_imported(installed: Installed, hostile, tmp_path, words):
    out = installed.run("opsctl", *words, cwd=tmp_path, code=None, PYTHONPATH=str(hostile))
    assert "hijacked" not in out
    assert "Usage" in out or words != ["--help"]


@pytest.mark.parametrize("where", ["working directory", "PYTHONPATH"])
def test_module_is_not_hijacked(installed: Installed, hostile, tmp_path, where):
    env, cwd = ({}, hostile) if where == "working directory" else ({"PYTHONPATH": str(hostile)}, tmp_path)
    assert "Usage" in installed.run("python", "-P", "-m", "opsctl", "--help", cwd=cwd, **env)
    assert "Usage" in installed.run("python", "-m", "opsctl", "--help", cwd=tmp_path, **env)
    usage = installed.run("python", "-P", "-m", "opsctl.guard.rank", "--help", cwd=cwd, code=2, **env)
    assert usage.startswith("opsctl: usage:")
    installed.run("python", "-P", "-m", "opsctl.guard.rank", "--free-port", cwd=cwd, **env)


def test_module_in_its_own_directory_is_not_hijacked(installed: Installed, hostile):
    assert "Usage" in installed.run("python", "-m", "opsctl", "--help", cwd=hostile)


def test_script_directory_is_not_imported(installed: Installed, hostile, tmp_path):
    """`pip install --user` puts the command into ~/.local/bin, which holds other files."""
    script = hostile / "opsctl"
    script.write_bytes((installed.bin / "opsctl").read_bytes())
    script.chmod(0o755)
    assert "hijacked" not in installed.run(str(script), "status", cwd=tmp_path, code=None)


def test_module_only_on_pythonpath_is_imported(installed: Installed, tmp_path):
    """Environment modules of clusters put their packages on PYTHONPATH."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here.py").write_text("print('found')")
    code = "import opsctl.__main__, only_here, sys; print(sys.path[-1])"
    out = installed.run("python", "-P", "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "lib"))
    assert out.split() == ["found", str(tmp_path / "lib")]


def test_pythonpath_is_passed_on_to_jobs(installed: Installed, hostile, tmp_path):
    pythonpath = os.pathsep.join((str(hostile), "", "relative"))
    code = "import opsctl.__main__, os; print(os.environ['PYTHONPATH'])"
    assert installed.run("python", "-P", "-c", code, cwd=tmp_path, PYTHONPATH=pythonpath).strip() == pythonpath


def test_standard_library_on_pythonpath_stays_first(installed: Installed, tmp_path):
    """A directory that PYTHONPATH names and Python has anyway keeps its position."""
    library = str(Path(os.__file__).parent)
    code = "import sys; before = list(sys.path); import opsctl.__main__; print(sys.path == before)"
    assert installed.run("python", "-P", "-c", code, cwd=tmp_path, PYTHONPATH=library).strip() == "True"


def test_guard_check_of_the_wrapper_is_not_hijacked(installed: Installed, hostile, tmp_path):
    """The wrapper checks that the guard can be imported; after a failed check the train runs without a guard."""
    for name in ("wrapper", "cron"):
        text = (ROOT / "templates" / "slurm" / f"{name}.slurm.j2").read_text()
        [check] = [line for line in text.splitlines() if '"$python" -P -c' in line]
        code = check.split(" -c '")[1].split("'")[0]
        installed.run("python", "-P", "-c", code, cwd=tmp_path, PYTHONPATH=str(hostile))


@pytest.mark.parametrize("path", ["opsctl", "trainer", "watchdogs", "examples"])
def test_every_python_started_is_protected(path):
    sources = sorted((ROOT / path).rglob("*.py"))
    assert [str(source) for source in sources if UNPROTECTED.search(source.read_text())] == []


@pytest.mark.parametrize("words", [("-c", FREEZE), ("-c", LIST), ("-", "{}")], ids=["freeze", "list", "all-reduce"])
def test_python_of_any_version_is_protected(hostile, words):
    """These scripts run with a Python that the user names, which may not know `-P`."""
    (hostile / "pip.py").write_bytes((hostile / "csv.py").read_bytes())
    script = (ROOT / "templates" / "nodes" / "all_reduce.py").read_text()
    done = subprocess.run(
        [sys.executable, *words], cwd=hostile, input=script, capture_output=True, text=True, timeout=250, check=False
    )
    assert "hijacked" not in done.stdout + done.stderr
