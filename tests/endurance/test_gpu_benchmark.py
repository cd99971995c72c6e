"""The way through the benchmark on a GPU, small and without one: it must be right when a GPU is at hand at last."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.torch

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "trainer_ranks.py"


def test_the_benchmark_on_a_gpu_finds_its_way_without_one(corpus, tmp_path):
    for suffix in (".bin", ".idx"):
        (tmp_path / f"corpus{suffix}").write_bytes(Path(f"{corpus}{suffix}").read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    argv = [sys.executable, "-P", str(BENCHMARK), "gpu-small", str(tmp_path), "1"]
    subprocess.run(argv, env={**os.environ, **env}, check=True, timeout=200)
    figures = json.loads((tmp_path / "gpu-small.json").read_text())
    assert figures["tflops"] == pytest.approx(figures["mfu"] * figures["matmul_tflops"])
    assert min(figures.values()) > 0
