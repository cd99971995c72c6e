"""Tests depend on no variable of whoever starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOREIGN = {
    "LINES": "40",
    "COLUMNS": "60",
    "NO_COLOR": "1",
    "FORCE_COLOR": "1",
    "LC_ALL": "C",
    "LANG": "tr_TR.UTF-8",
    "http_proxy": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "BASH_ENV": "/nowhere",
    "PAGER": "false",
    "XDG_CONFIG_HOME": "/nowhere",
    "SLURM_JOB_ID": "7",
    "SLURMD_NODENAME": "n1",
    "SQUEUE_FORMAT": "%i",
    "OPSCTL_SITE": "/nowhere",
    "TRAIN_RUN_DIR": "/nowhere",
}
"""The environment of a terminal, of another language, or of a job."""


def test_variables_of_the_caller_are_dropped() -> None:
    code = "import os, tests.conftest as c; c.pytest_configure(); print(*sorted(os.environ), os.environ['LANG'])"
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "TZ": "Asia/Kathmandu", **FOREIGN}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=100
    )
    assert {"PATH", "HOME", "TZ", "C.UTF-8"} <= set(done.stdout.split())
    assert set(done.stdout.split()) & set(FOREIGN) == {"LANG"}
