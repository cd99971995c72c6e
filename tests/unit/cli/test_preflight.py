"""`opsctl preflight` as it is typed, where there is no Slurm."""

import json
import os
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def preflight(tmp_path):
    """Runs the verb on a train with these settings; code, what it says, what it complains of."""
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to(shutil.which("bash"))

    def run(*words, environment="", trainer="", slurm=""):
        text = f"""name = "t"
{trainer or 'command = ["train", "{{ stop_request }}"]'}
[slurm]
nodes = 1
time_limit = "60"
{slurm}
[environment]
{environment}
"""
        (tmp_path / "t.toml").write_text(text)
        argv = [sys.executable, "-m", "opsctl", "--site", str(tmp_path / "site.toml"), "preflight", "t.toml", *words]
        env = {**os.environ, "PATH": str(tmp_path / "bin")}
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=250, cwd=tmp_path, env=env)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_slurm_that_is_not_there_is_a_note_and_no_error(preflight):
    code, out, _ = preflight("--strict", "--json")
    said = json.loads(out)
    assert (code, said["train"], said["ok"]) == (0, "t", True)
    assert [(each["level"], each["check"]) for each in said["findings"]] == [("note", "unknown")]


def test_a_warning_fails_only_with_strict(preflight):
    leftover = 'NCCL_P2P_DISABLE = "1"'
    assert preflight(environment=leftover)[0] == 0
    code, out, _ = preflight("--strict", environment=leftover)
    assert code == 2
    assert "t: 1 warning, 1 note; " in out


def test_an_error_fails_with_its_source_and_its_remedy(preflight):
    code, out, err = preflight(environment='HF_TOKEN = "x"')
    assert (code, err) == (2, "")
    assert "error  secrets  [environment] HF_TOKEN: every user could read the value in body.sh" in out
    assert "put the value in a file that only you can read" in out and "[BigScience hub-sync.py" in out


def test_what_launch_cannot_render_is_an_error_too(preflight):
    code, out, _ = preflight("--json", trainer='command = ["x", "{{ nodse }}"]')
    found = {load["check"]: load["what"] for load in json.loads(out)["findings"]}
    assert (code, found["body"].partition(";")[0]) == (2, "{{ nodse }}: unknown")


def test_a_file_that_is_no_train_is_refused_as_everywhere(preflight):
    code, out, err = preflight(slurm="nodse = 3")
    assert (code, out) == (2, "")
    assert "[slurm] nodse: unknown key; did you mean 'nodes'?" in err
