"""Sandbox nodes with cards that answer from the corpus: nvidia-smi, dmesg and dcgmi are scripts on PATH."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from opsctl.nodes.drain_plan import is_out
from opsctl.sandbox.cluster import Sandbox
from tests.support.made_nodes import corpus, smi
from tests.support.sshds import sshd
from tests.support.trains import Trains, trains_on, until

NODES = ("node001", "node002", "node003", "node004")
TOOLS = {
    "nvidia-smi": 'case "$*" in "-q -x") say smi ;; *) echo "Not supported"; exit 3 ;; esac',
    "dmesg": "say dmesg",
    "dcgmi": "say dcgmi",
    "chronyc": 'echo "System time     : 0.000001 seconds fast of NTP time"',
}

SAY = """say() {
    f="$here/$SLURMD_NODENAME.$1"
    [ -e "$f" ] || exit 127
    [ ! -e "$f.sh" ] || . "$f.sh"
    cat "$f"
    exit "$(cat "$f.code" 2>/dev/null || echo 0)"
}"""


class GpuNodes:
    """What each node's tools say, one file for each; a `.sh` beside it runs first."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.bin = place / "bin"
        self.bin.mkdir()
        for name, does in TOOLS.items():
            tool = self.bin / name
            tool.write_text(f"#!/bin/sh\nhere={place}\n{SAY}\n{does}\n")
            tool.chmod(0o755)
        for node in NODES:
            self.says(node, "smi", smi(2, node=node))
            self.says(node, "dmesg", "")

    def says(self, node: str, tool: str, text: str, *, code: int = 0, first: str = "") -> None:
        """What `tool` says there from now on; `first` is shell that runs before."""
        path = self.place / f"{node}.{tool}"
        path.write_text(text)
        Path(f"{path}.code").write_text(f"{code}\n")
        Path(f"{path}.sh").write_text(f"{first}\n")

    def breaks(self, node: str, **changes: str) -> None:
        """One value of its second card changes."""
        self.says(node, "smi", smi(2, bad=1, node=node, **changes))

    def logs(self, node: str, log: str) -> None:
        """Its kernel log is that of the corpus."""
        self.says(node, "dmesg", corpus(f"dmesg/{log}.txt"))


@contextmanager
def gpu_nodes(sandbox: Sandbox, *, more: str = "", ssh: bool = False) -> Iterator[tuple[Trains, GpuNodes]]:
    """Trains on a sandbox whose nodes have cards; with `ssh` also a daemon for each. All are idle after it."""
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
        health = f"[health]\nsection_seconds = 30\ndrain_percent = 50\nundrain_gap_seconds = 0\n{more}\n"
        trains.site.write_text(trains.site.read_text() + remote + health)
        yield trains, nodes
        _all_back(trains)


def _all_back(trains: Trains) -> None:
    scheduler = trains.app.scheduler
    for job in scheduler.jobs():
        if not job.state.is_final:
            scheduler.cancel(job.array)
    for node in scheduler.nodes():
        if is_out(node):
            scheduler.resume(node.name)
    until(lambda: {node.state for node in scheduler.nodes()} == {"IDLE"}, seconds=150)
