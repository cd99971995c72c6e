"""`opsctl preflight` on a machine without Slurm."""

import json
import os
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def preflight(tmp_path):
    """Run the command on a train with these settings; return exit code, stdout and stderr."""
    (tmp_path / "site.toml").write_text(f'root = "{tmp_path}/trains"\n')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to(shutil.which("bash"))
    (tmp_path / "bin" / "train").symlink_to(shutil.which("true"))

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


def test_missing_slurm_is_only_a_note(preflight):
    code, out, _ = preflight("--strict", "--json")
    result = json.loads(out)
    assert (code, result["train"], result["ok"]) == (0, "t", True)
    assert [(finding["severity"], finding["check"]) for finding in result["findings"]] == [("note", "unknown")]


def test_warning_fails_only_with_strict(preflight):
    leftover = 'NCCL_P2P_DISABLE = "1"'
    assert preflight(environment=leftover)[0] == 0
    code, out, _ = preflight("--strict", environment=leftover)
    assert code == 2
    assert "t: 1 warning, 1 note; " in out


def test_error_shows_source_and_remedy(preflight):
    code, out, err = preflight(environment='HF_TOKEN = "x"')
    assert (code, err) == (2, "")
    assert "error  secrets  [environment] HF_TOKEN: every user could read the value in body.sh" in out
    assert "put the value in a file that only you can read" in out and "[BigScience hub-sync.py" in out


def test_unrenderable_body_is_an_error(preflight):
    code, out, _ = preflight("--json", trainer='command = ["x", "{{ nodse }}"]')
    texts = {finding["check"]: finding["what"] for finding in json.loads(out)["findings"]}
    assert (code, texts["body"].partition(";")[0]) == (2, "{{ nodse }}: unknown")


def test_invalid_train_file_is_refused(preflight):
    code, out, err = preflight(slurm="nodse = 3")
    assert (code, out) == (2, "")
    assert "[slurm] nodse: unknown key; did you mean 'nodes'?" in err
