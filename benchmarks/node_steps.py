"""The check of many nodes in steps of one job, on real slurmds of this machine, and a model for 2,048 nodes.

python -P benchmarks/node_steps.py             prints a table in some minutes
python -P benchmarks/node_steps.py 64 128      with these numbers of nodes

Here all nodes share the cores of one machine, while on a cluster each does its own work: so the CPU time of srun and of
opsctl, which one machine has to spend for all nodes, is measured apart and extrapolated.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from opsctl.app import build  # noqa: E402 (as above)
from opsctl.base.ports import Answer  # noqa: E402 (as above)
from opsctl.host.system import SystemClock, SystemRunner  # noqa: E402 (as above)
from opsctl.nodes.health.node_checker import NodeChecker  # noqa: E402 (as above)
from opsctl.nodes.history import NodeHistory  # noqa: E402 (as above)
from opsctl.nodes.remote.fanout import Fanout  # noqa: E402 (as above)
from opsctl.sandbox.cluster import Sandbox  # noqa: E402 (as above)
from opsctl.sandbox.record import Places  # noqa: E402 (as above)
from opsctl.sandbox.slurm_conf import SandboxSpec  # noqa: E402 (as above)
from opsctl.settings.health import HealthSettings  # noqa: E402 (as above)
from opsctl.state.site_dir import SiteDir  # noqa: E402 (as above)
from tests.support.made_nodes import render_answer, render_smi  # noqa: E402 (as above)

SIZES = (64, 128, 256, 512)
MODELLED = 2048
MARK = "@@MARK"
LIMIT_S = 39.0
"""Commands with more time look for silent nodes first."""


class PrintedAnswers:
    """Nodes of eight GPUs that answer at once."""

    name = "srun"

    def __init__(self) -> None:
        self.text = render_answer(smi=render_smi(8))

    def reaches(self, node: str) -> bool:
        return bool(node)

    def run_all(self, nodes: list[str], argv: object, *, timeout: float, stdin: str = "") -> dict[str, Answer]:  # noqa: ARG002 (the protocol's signature)
        mark = re.match(r"MARK='?([^'\n]+)", stdin)
        assert mark
        out = self.text.replace(MARK, mark[1])
        return {node: Answer(node=node, by="srun", code=0, out=out) for node in nodes}


def measure(work: Callable[[], object]) -> tuple[float, float, float]:
    """Return wall-clock seconds, and CPU seconds of this process and of its children."""
    before = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    began_s = time.perf_counter()
    work()
    wall_s = time.perf_counter() - began_s
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s, children_s = (
        late.ru_utime + late.ru_stime - early.ru_utime - early.ru_stime
        for late, early in zip(after, before, strict=True)
    )
    return wall_s, own_s, children_s


def measure_steps(count: int) -> tuple[str, ...]:
    """Return the seconds of a command without output, and of one with 19 kB, on `count` slurmds."""
    nodes = [f"node{number:03}" for number in range(1, count + 1)]
    with tempfile.TemporaryDirectory(prefix="opsctl-steps-") as name:
        places = Places(state=Path(name) / "state", cache=Path(name) / "cache")
        spec = SandboxSpec(name=f"steps-{count}", nodes=count, fast=True)
        sandbox = Sandbox.up(spec, places=places, clock=SystemClock(), runner=SystemRunner())
        try:
            runner = SystemRunner(env=sandbox.env())
            words = ("sbatch", "--parsable", f"--nodes={count}", "--output=/dev/null", "--wrap=sleep 3000")
            job = runner.run(words, timeout=60).out.strip()
            while runner.run(("squeue", "-h", "-j", job, "-o", "%T"), timeout=60).out.strip() != "RUNNING":
                time.sleep(0.2)
            site = Path(name) / "site.toml"
            site.write_text(f'root = "{name}/trains"\n[remote]\nways = ["srun"]\n')
            os.environ |= {"XDG_STATE_HOME": name, **sandbox.env()}
            fanout = build(site).fanout(jobs=dict.fromkeys(nodes, job), idle=())
            empty = measure(lambda: fanout.run(nodes, ("true",), timeout=LIMIT_S))
            answers: dict[str, Answer] = {}
            step = measure(lambda: answers.update(fanout.run(nodes, ("seq", "4000"), timeout=LIMIT_S)))
            good = sum(answer.code == 0 and len(answer.out.split()) == 4000 for answer in answers.values())
            times = (empty[0], empty[2], step[0], step[1], step[2])
            return (*(f"{value:.2f} s" for value in times), f"{good}")
        finally:
            sandbox.down(grace=0.2)


def measure_judging(count: int) -> tuple[float, float, float]:
    """Return the seconds from the answers to the verdicts, and to the end of the history's writing."""
    nodes = [f"node{number:04}" for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="opsctl-judging-") as name:
        clock, times = SystemClock(), list[float]()
        checker = NodeChecker(
            fanout=Fanout(shells=[PrintedAnswers()]),
            history=NodeHistory(site=SiteDir(Path(name) / ".site"), clock=clock),
            site=HealthSettings(),
            clock=clock,
            busy=dict.fromkeys(nodes, True),
            notify=lambda _: times.append(time.perf_counter()),
        )
        checker.check(nodes)  # the history of a first check
        times.clear()
        began_s = time.perf_counter()
        _, own_s, _ = measure(lambda: checker.check(nodes))
        return times[0] - began_s, time.perf_counter() - began_s, own_s


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    print("| slurmds | no output: wall | CPU of srun | 19 kB of each: wall | CPU of opsctl | CPU of srun | answers |")
    print("|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for count in sizes:
        print(f"| {count} | " + " | ".join(measure_steps(count)) + " |", flush=True)
    print("| nodes | answers to verdicts, wall | and history written | CPU |")
    print("|---:|---:|---:|---:|", flush=True)
    for count in (*sizes, MODELLED):
        print(f"| {count} | " + " | ".join(f"{value:.2f} s" for value in measure_judging(count)) + " |", flush=True)


if __name__ == "__main__":
    main()
