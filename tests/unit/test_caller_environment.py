"""Tests depend on no variable of whoever starts them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.cases import read_table

ROOT = Path(__file__).parents[2]
FOREIGN = read_table(__file__, "foreign")
"""The environment of a terminal, of another language, or of a job."""


def test_variables_of_the_caller_are_dropped() -> None:
    code = "import os, tests.conftest as c; c.pytest_configure(); print(*sorted(os.environ), os.environ['LANG'])"
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "TZ": "Asia/Kathmandu", **FOREIGN}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=100
    )
    assert {"PATH", "HOME", "TZ", "C.UTF-8"} <= set(done.stdout.split())
    assert set(done.stdout.split()) & set(FOREIGN) == {"LANG"}
