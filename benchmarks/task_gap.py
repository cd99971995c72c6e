"""The cost of a task change: the time from the last step of one task to the first step of the next.

python -P benchmarks/task_gap.py                  arrays of plain srun and trains of opsctl in turn, about three minutes
python -P benchmarks/task_gap.py --rounds 3 --json

Both run the same trainer on the same private Slurm: three nodes with two ranks each, tasks of a few seconds, the
settings of opsctl as shipped. A step counts when all ranks have made it. CPU is that of all processes of the jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

TRAINER = Path(__file__).parent / "task_change" / "trainer.py"
NODES, RANKS_A_NODE, TASKS = 3, 2, 4
AIM_S = 0.7
PLAIN = """#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node={ranks} --time=10 --array=1-{tasks}%1 --job-name=gap --output={place}/log.txt
srun --kill-on-bad-exit=1 {command}
"""
TRAIN = """name = "{name}"
command = {command}
[slurm]
nodes = {nodes}
processes_per_node = {ranks}
time_limit = "10"
tasks = {tasks}
[guard]
on_exit_0 = "continue"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One array of tasks that ran one after the other."""

    gaps_s: list[float]
    cpu_s: float
    """Per task."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help=f"arrays of {TASKS} tasks of each kind (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="training time of a task (default: 3)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    namespace = parser.parse_args()
    if namespace.inside:
        (namespace.inside / "result.json").write_text(json.dumps(measure(namespace)))
        return 0
    with tempfile.TemporaryDirectory(prefix="opsctl-gap-") as place:
        result = measure_in_sandbox(Path(place), namespace)
    print(json.dumps(result, indent=1) if namespace.json else table(result))
    return 0


def measure_in_sandbox(place: Path, namespace: argparse.Namespace) -> dict[str, object]:
    size = ["--fast", "--nodes", str(NODES), "--gpus-per-node", "0"]
    inner = [sys.executable, "-P", __file__, "--inside", str(place)]
    options = ["--rounds", str(namespace.rounds), "--seconds", str(namespace.seconds)]
    env = {**os.environ, "HOME": str(place), "XDG_STATE_HOME": str(place), "OPSCTL_SITE": str(place / "site.toml")}
    (place / "site.toml").write_text(f'root = "{place}/trains"\ntrust_parents = true\n')
    words = [sys.executable, "-P", "-m", "opsctl", "sandbox", "run", *size, "--", *inner, *options]
    subprocess.run(words, env=env, check=True, timeout=1800)
    return json.loads((place / "result.json").read_text())


def measure(namespace: argparse.Namespace) -> dict[str, object]:
    """Run both kinds in turn, so that a slow moment of the machine affects both."""
    runs: dict[str, list[Run]] = {"plain": [], "opsctl": []}
    for number in range(namespace.rounds):
        for kind, done in runs.items():
            place = namespace.inside / f"{kind}{number}"
            place.mkdir()
            done.append(run(kind, place, namespace.seconds))
    gaps = {kind: list(chain.from_iterable(done.gaps_s for done in kinds)) for kind, kinds in runs.items()}
    pairs = [
        statistics.median(ours.gaps_s) - statistics.median(plain.gaps_s)
        for plain, ours in zip(runs["plain"], runs["opsctl"], strict=True)
    ]
    return {
        "gap_s": {kind: statistics.median(values) for kind, values in gaps.items()},
        "gaps_s": gaps,
        "cpu_s": {kind: statistics.median(done.cpu_s for done in kinds) for kind, kinds in runs.items()},
        "above_plain_s": statistics.median(pairs),
        "differences_s": pairs,
        "load": os.getloadavg()[0],
    }


def run(kind: str, place: Path, seconds: float) -> Run:
    checkpoints = "{{ checkpoint_dir }}" if kind == "opsctl" else str(place / "checkpoints")
    command = [sys.executable, "-I", "-S", str(TRAINER), str(place), checkpoints, str(seconds)]
    sizes = {"nodes": NODES, "ranks": RANKS_A_NODE, "tasks": TASKS, "place": place}
    before = None
    if kind == "plain":
        (place / "job.sh").write_text(PLAIN.format(command=" ".join(command), **sizes))
        before = read_cpu_s()
        subprocess.run(["sbatch", "--quiet", str(place / "job.sh")], check=True, timeout=60)
    else:
        train = TRAIN.format(name=place.name, command=json.dumps(command), **sizes)
        (place / "train.toml").write_text(train)
        words = [sys.executable, "-P", "-m", "opsctl", "launch", str(place / "train.toml")]
        with (place / "launch.txt").open("w") as out:
            subprocess.run(words, check=True, stdout=out, stderr=out, timeout=120)
        before = read_cpu_s()
    steps = await_steps(place)
    return Run(gaps_s=find_gaps(steps), cpu_s=(read_cpu_s() - before) / TASKS)


def await_steps(place: Path) -> list[str]:
    """Wait until all tasks are over; return the lines of the trainer."""
    until = time.monotonic() + 600
    while subprocess.run(["squeue", "--noheader"], capture_output=True, check=True, timeout=60).stdout:
        if time.monotonic() > until:
            raise SystemExit(f"not over after ten minutes: {place}")
        time.sleep(0.5)
    time.sleep(1)  # what a job leaves behind is reaped
    lines = (place / "steps").read_text().splitlines()
    if len(lines) != 2 * TASKS * NODES * RANKS_A_NODE:
        raise SystemExit(f"{len(lines)} lines in {place}/steps, expected all ranks of {TASKS} tasks twice")
    return lines


def find_gaps(lines: Sequence[str]) -> list[float]:
    """Return the times between the tasks: from the last rank's end to the last rank's start."""
    times: dict[str, list[float]] = {}
    for line in lines:
        job, _, at = line.split()
        times.setdefault(job, []).append(float(at))
    ranks = NODES * RANKS_A_NODE
    spans = [(sorted(task)[ranks - 1], max(task)) for task in sorted(times.values(), key=min)]
    return [begin - end for (_, end), (begin, _) in pairwise(spans)]


def read_cpu_s() -> float:
    """Return the CPU time of all processes that the first process of the sandbox has reaped: those of the jobs."""
    fields = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")


def table(result: dict) -> str:
    gap, cpu = result["gap_s"], result["cpu_s"]
    rows = [
        ("plain srun", gap["plain"], cpu["plain"]),
        ("opsctl", gap["opsctl"], cpu["opsctl"]),
        ("difference", result["above_plain_s"], cpu["opsctl"] - cpu["plain"]),
    ]
    lines = ["|  | last to first step, s | CPU of a task, s |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {seconds:.2f} | {cpu_s:.2f} |" for name, seconds, cpu_s in rows]
    count = len(result["gaps_s"]["plain"])
    return "\n".join(
        [*lines, "", f"medians of {count} changes each; aim {AIM_S} s on a quiet machine; load {result['load']:.1f}"]
    )


if __name__ == "__main__":
    sys.exit(main())
