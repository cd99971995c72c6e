"""The directory, the variables and the settings with which opsctl starts."""

import os
import subprocess
import sys
import time

import pytest

from opsctl.base.errors import ConfigError
from opsctl.settings.loader import load_site, load_train
from tests.support.cases import read_cases, read_table

MODULES = ("csv", "json", "tomllib", "click", "rich", "trainer", "opsctl", "sitecustomize", "usercustomize", "pwd")
TRAIN = 'name = "a"\ncommand = ["true"]\n[slurm]\nnodes = 1\ntime_limit = "60"\n'
BOMBS = {
    "long key": TRAIN + "k" * 1_000_000 + " = 1\n",
    "long text": TRAIN.replace('"a"', '"' + "a" * 1_000_000 + '"'),
    "binary": "\udcff\udcfe",
}
BOMBS |= {row["id"]: TRAIN.replace(row["old"], row["new"]) for row in read_table(__file__, "settings")}
BOMBS |= {name: f"{TRAIN}[container]\n{text}\n" for name, text in read_table(__file__, "containers").items()}


def run_opsctl(tmp_path, *words, cwd=None, **variables):
    env = {**os.environ, "OPSCTL_ROOT": str(tmp_path / "trains"), "XDG_CONFIG_HOME": str(tmp_path), **variables}
    argv = [sys.executable, "-P", "-m", "opsctl", *words]
    return subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.attack("settings stop, hang or inject")
@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_settings_are_refused_in_time(tmp_path, text):
    path = tmp_path / "train.toml"
    path.write_text(text, errors="surrogateescape")
    began = time.process_time()
    with pytest.raises((ConfigError, RecursionError)) as refused:
        load_train(path)
    assert time.process_time() - began < 5
    if isinstance(refused.value, ConfigError):
        assert "\n#SBATCH" not in str(refused.value)


@pytest.mark.attack("a secret in clear is accepted from a file that others can read")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_readable_secret_is_refused(tmp_path, mode):
    path = tmp_path / "site.toml"
    path.write_text(
        'root = "/x"\n[alerts.channels.a]\nkind = "slack"\nwebhook = "https://hooks.example.org/T/B/hunter2"\n'
    )
    path.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        load_site(path)
    assert "hunter2" not in str(refused.value)


@pytest.mark.attack("a module in the working directory is imported")
@pytest.mark.parametrize("module", MODULES)
def test_working_directory_is_not_imported(tmp_path, module):
    code = tmp_path / "code"
    code.mkdir()
    (code / f"{module}.py").write_text(f"open({str(tmp_path / 'owned')!r}, 'w')\nraise SystemExit(9)\n")
    done = run_opsctl(tmp_path, "status", cwd=code)
    assert not (tmp_path / "owned").exists()
    assert done.returncode != 9


@pytest.mark.attack("a variable of the environment runs code in opsctl's programs")
@pytest.mark.parametrize(*read_cases(__file__, "variable_runs_nothing"))
def test_variable_runs_nothing(tmp_path, variable, value):
    file = tmp_path / "run.sh"
    file.write_text(f"#!/bin/sh\ntouch {tmp_path}/owned\n")
    file.chmod(0o755)
    done = run_opsctl(tmp_path, "status", cwd=tmp_path, **{variable: value.format(file=file)})
    assert not (tmp_path / "owned").exists()
    assert "bug in opsctl" not in done.stderr
    assert done.returncode in {0, 1, 2, 75}


@pytest.mark.attack("a variable that loads code is not reported")
@pytest.mark.parametrize(
    "variable", ["PATH", "PYTHONPATH", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "BASH_ENV", "GIT_EXEC_PATH"]
)
def test_variable_that_loads_code_is_reported(tmp_path, variable):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    before = f"{os.environ['PATH']}:" if variable == "PATH" else ""
    done = run_opsctl(tmp_path, "doctor", "--security", **{variable: f"{before}{tmp_path}/open"})
    assert f"{variable}: {tmp_path}/open: mode 0777 lets others write" in done.stdout
    assert done.returncode == 1
