"""Up, down and what is left: on real Slurms."""

from __future__ import annotations

import os
import subprocess

from opsctl.sandbox.cluster import Sandbox


def slurm_says(sandbox: Sandbox, *argv: str) -> str:
    done = subprocess.run(
        argv, env={**os.environ, **sandbox.env()}, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_a_job_runs_on_every_node_and_sees_its_gpus(slurm: Sandbox) -> None:
    said = slurm_says(slurm, "srun", "-N4", "--gres=gpu:2", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES")
    assert sorted(said.splitlines()) == ["node001 0,1", "node002 0,1", "node003 0,1", "node004 0,1"]
