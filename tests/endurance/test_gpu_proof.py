"""Every path of `make gpu` that a CPU can take, at a tiny size: the first run on a GPU is not the first run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.torch

PROOF = Path(__file__).parents[2] / "benchmarks" / "gpu_proof.py"


@pytest.mark.parametrize("names", [["precision", "resume", "guards"], ["loss", "speed", "saving", "largest"]])
def test_proofs_find_their_way_on_a_cpu(names):
    argv = [sys.executable, "-P", str(PROOF), "--device", "cpu", "--tiny", "--json", "--budget", "1700"]
    titan = ["--torchtitan", "echo mfu: 41.50%"]
    done = subprocess.run([*argv, *titan, "--only", *names], capture_output=True, text=True, timeout=1750, check=False)
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows if row["is_proof"] and not row["is_met"]] == [], done.stderr
    assert done.returncode == 0
    assert {"name": "torchtitan: MFU", "figure": "41.5%"}.items() <= rows[-1].items()
    assert len(rows) > 2 * len(names) - 2
