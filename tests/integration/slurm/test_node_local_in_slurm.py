"""The Prolog and Epilog of templates/health in a real Slurm: evidence drains the node, ignorance does not."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from opsctl.sandbox.cluster import Sandbox
from tests.support.slurms import Up, run_slurm, wait_until

ROOT = Path(__file__).parents[3]
LOST = "#!/bin/sh\necho 'Unable to determine the device handle for GPU0000:9B:00.0: GPU is lost'\nexit 15\n"


def show_node(sandbox: Sandbox) -> str:
    return run_slurm(sandbox, "sinfo", "-h", "-N", "-o", "%T %E", "-n", "node001")


def run_job(sandbox: Sandbox) -> None:
    run_slurm(sandbox, "sbatch", "-w", "node001", "--output=/dev/null", "--wrap=true")
    wait_until(lambda: not run_slurm(sandbox, "squeue", "-h"))


@pytest.mark.long
@pytest.mark.root
def test_epilog_drains_on_evidence_alone(fresh_slurm: Up, tmp_path: Path) -> None:
    sandbox = fresh_slurm(nodes=1)
    place, tools = tmp_path / "slurm", tmp_path / "bin"
    shutil.copytree(ROOT / "templates" / "health", place)
    tools.mkdir()
    (tools / "logger").write_text(f"#!/bin/sh\ncat >>{tmp_path}/log\n")
    (tools / "logger").chmod(0o755)
    (place / "node-local.conf").write_text(
        f"OPSCTL_PATH={ROOT} OPSCTL_PYTHON={os.path.realpath(sys.executable)} OPSCTL_SITE=/none\n"
        f"OPSCTL_CLEARED={tmp_path}/cleared PATH={tools}:$PATH\n: >>{tmp_path}/ran\n"
    )
    (place / "epilog.sh").write_text((place / "epilog.sh").read_text().replace("PATH=", f"PATH={tools}:", 1))
    conf = Path(sandbox.conf)
    conf.write_text(f"{conf.read_text()}\nEpilog={place}/epilog.sh\n")
    run_slurm(sandbox, "scontrol", "reconfigure")
    run_job(sandbox)
    wait_until((tmp_path / "ran").exists)
    wait_until(lambda: "idle" in show_node(sandbox))
    (tools / "nvidia-smi").write_text(LOST)
    (tools / "nvidia-smi").chmod(0o755)
    run_job(sandbox)
    wait_until(lambda: show_node(sandbox).startswith("drain"))
    assert "Epilog error" in show_node(sandbox)
    assert "Health check failed:  gpus:  nvidia-smi exit code 15" in (tmp_path / "log").read_text()
