"""Sandbox nodes with GPUs: nvidia-smi, dmesg and dcgmi are scripts on PATH that print text of the corpus."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from opsctl.nodes.drain_plan import is_out
from opsctl.sandbox.cluster import Sandbox
from tests.support.made_nodes import read_corpus, render_smi
from tests.support.sshds import sshd
from tests.support.trains import Trains, trains_on, until

NODES = ("node001", "node002", "node003", "node004")
TOOLS = {
    "nvidia-smi": 'case "$*" in "-q -x") print_output smi ;; *) echo "Not supported"; exit 3 ;; esac',
    "dmesg": "print_output dmesg",
    "dcgmi": "print_output dcgmi",
    "chronyc": 'echo "System time     : 0.000001 seconds fast of NTP time"',
}

PRINT_OUTPUT = """print_output() {
    file="$here/$SLURMD_NODENAME.$1"
    [ -e "$file" ] || exit 127
    [ ! -e "$file.sh" ] || . "$file.sh"
    cat "$file"
    exit "$(cat "$file.code" 2>/dev/null || echo 0)"
}"""


ORPHAN_UID = 4_000_000
"""No account of a machine has it, as those of people who run tests beside this one."""


class GpuNodes:
    """The output of every node's tools: a file for each, with an optional `.sh` file that runs before."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.bin = place / "bin"
        self.bin.mkdir()
        for name, lines in TOOLS.items():
            tool = self.bin / name
            tool.write_text(f"#!/bin/sh\nhere={place}\n{PRINT_OUTPUT}\n{lines}\n")
            tool.chmod(0o755)
        for node in NODES:
            self.set_output(node, "smi", render_smi(2, node=node))
            self.set_output(node, "dmesg", "")

    def set_output(self, node: str, tool: str, text: str, *, code: int = 0, first: str = "") -> None:
        """Set what `tool` prints on a node from now on, and its exit code; `first` is shell text that runs before."""
        path = self.place / f"{node}.{tool}"
        path.write_text(text)
        Path(f"{path}.code").write_text(f"{code}\n")
        Path(f"{path}.sh").write_text(f"{first}\n")

    def change_gpu(self, node: str, **changes: str) -> None:
        """Change values of the node's second GPU; without changes the GPU is healthy."""
        self.set_output(node, "smi", render_smi(2, bad=1, node=node, **changes))

    def set_kernel_log(self, node: str, log: str) -> None:
        """Set the node's kernel log to a file of the corpus."""
        self.set_output(node, "dmesg", read_corpus(f"dmesg/{log}.txt"))


@contextmanager
def gpu_nodes(sandbox: Sandbox, *, more: str = "", ssh: bool = False) -> Iterator[tuple[Trains, GpuNodes]]:
    """Yield trains on a sandbox whose nodes have GPUs, with `ssh` also an sshd; all nodes are idle afterwards."""
    with trains_on(sandbox) as trains, pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        tools = trains.place / "tools"
        tools.mkdir()
        nodes = GpuNodes(tools)
        patch.setenv("PATH", f"{nodes.bin}:{os.environ['PATH']}")
        remote = '[remote]\nways = ["srun", "job"]\n'
        if ssh:
            keys = trains.place / "sshd"
            keys.mkdir()
            remote = stack.enter_context(sshd(keys, NODES, path=f"{nodes.bin}:/usr/sbin:/usr/bin:/sbin:/bin")).toml
        # stuck_seconds, user_uid_min: other processes of this machine are no part of the test
        health = "[health]\nsection_seconds = 30\ndrain_percent = 50\nundrain_gap_seconds = 0\nstuck_seconds = 1e9\n"
        health += f"user_uid_min = {ORPHAN_UID}\n"
        health += f"{more}\n"
        trains.site.write_text(trains.site.read_text() + remote + health)
        yield trains, nodes
        _restore_nodes(trains)


def _restore_nodes(trains: Trains) -> None:
    slurm = trains.app.slurm
    for job in slurm.jobs():
        if not job.state.is_final:
            slurm.cancel(job.array)
    for node in slurm.nodes():
        if is_out(node):
            slurm.resume(node.name)
    until(lambda: {node.state for node in slurm.nodes()} == {"IDLE"}, seconds=150)
