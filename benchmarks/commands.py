"""The cost of the command line, as ratios within one run. The machines are noisy, so no figure is a test.

python benchmarks/commands.py            prints a table in about a minute
python benchmarks/commands.py --json
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROUNDS = 9
OPSCTL = [sys.executable, "-m", "opsctl"]
TRAIN = """name = "bench"
command = ["sleep", "600"]
[slurm]
nodes = 1
time_limit = "20"
tasks = {tasks}
"""


def seconds(argv: Sequence[str], env: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def paired(ours: Sequence[str], other: Sequence[str], env: dict[str, str]) -> tuple[float, float]:
    """Return the medians of two commands, run in turn so that a slow moment of the machine affects both."""
    seconds(ours, env), seconds(other, env)
    pairs = [(seconds(ours, env), seconds(other, env)) for _ in range(ROUNDS)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


@contextmanager
def sandbox(home: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of opsctl on a sandbox of four nodes, whose state is in `home`."""
    env = {**os.environ, "XDG_STATE_HOME": str(home), "OPSCTL_SITE": str(home / "site.toml")}
    env.pop("SLURM_CONF", None)
    (home / "site.toml").write_text(f'root = "{home}/trains"\nengine = "sandbox"\nsandbox = "bench"\n')
    subprocess.run([*OPSCTL, "sandbox", "up", "--name", "bench", "--nodes", "4"], env=env, check=True)
    try:
        yield env
    finally:
        subprocess.run([*OPSCTL, "sandbox", "down", "--name", "bench"], env=env, check=True)


def launch(home: Path, env: dict[str, str], name: str, tasks: int) -> None:
    path = home / f"{name}.toml"
    path.write_text(TRAIN.format(tasks=tasks).replace("bench", name))
    subprocess.run([*OPSCTL, "launch", str(path)], env=env, check=True, stdout=subprocess.DEVNULL)


def slurm_env(env: dict[str, str]) -> dict[str, str]:
    """Return `env` with the variables with which Slurm's commands find the sandbox."""
    out = subprocess.run(
        [*OPSCTL, "sandbox", "env", "--name", "bench"], env=env, check=True, capture_output=True, text=True
    )
    pairs = [line.removeprefix("export ").partition("=") for line in out.stdout.splitlines() if "=" in line]
    return {**env, **{key: value.strip("'\"") for key, _, value in pairs}}


def count_slurm_commands(argv: Sequence[str], env: dict[str, str], home: Path) -> int:
    """Return the number of Slurm commands that `argv` runs, counted by wrappers on PATH."""
    place, count = home / "counting", home / "count"
    place.mkdir()
    count.write_text("")
    for name in ("squeue", "sinfo", "sacct", "scontrol", "sacctmgr", "sbatch", "scancel"):
        wrapper = place / name
        wrapper.write_text(f'#!/bin/sh\necho {name} >> "{count}"\nPATH="${{PATH#*:}}" exec {name} "$@"\n')
        wrapper.chmod(0o755)
    subprocess.run(argv, env={**env, "PATH": f"{place}:{env['PATH']}"}, check=True, stdout=subprocess.DEVNULL)
    return len(count.read_text().split())


def crowd(env: dict[str, str], jobs: int) -> None:
    """Queue many other held jobs, one by one: an array is one row until it starts."""
    script = "for i in $(seq $0); do sbatch -Q -H -J other$i -o /dev/null --wrap 'sleep 1'; done"
    subprocess.run(["sh", "-c", script, str(jobs)], env=env, check=True, stdout=subprocess.DEVNULL)


def measure(report: Callable[[str, str, str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="opsctl-bench-") as place:
        home = Path(place)
        plain = dict(os.environ)
        ours, other = paired([*OPSCTL, "--help"], [sys.executable, "-c", "import click"], plain)
        report("opsctl --help / python -c 'import click'", f"{ours / other:.2f}", "2.5 at most")
        with sandbox(home) as env:
            example = Path(__file__).parents[1] / "examples" / "gpt-176b.toml"
            preflight = ["sh", "-c", '"$@" || [ $? = 2 ]', "sh", *OPSCTL, "preflight", str(example)]
            ours, other = paired(preflight, ["sinfo"], slurm_env(env))
            report("opsctl preflight of 176 billion parameters", f"{ours:.2f} s", "1 s at most")
            launch(home, env, "one", 10)
            squeue = slurm_env(env)
            ours, other = paired([*OPSCTL, "status", "one"], ["squeue"], squeue)
            report("opsctl status of one train - squeue", f"{1000 * (ours - other):.0f} ms", "250 ms at most")
            count = count_slurm_commands([*OPSCTL, "status"], squeue, home)
            report("Slurm commands of one opsctl status", str(count), "2 at most")
            launch(home, env, "two", 1000)
            launch(home, env, "three", 1000)
            crowd(squeue, 1000)
            ours, other = paired([*OPSCTL, "status"], ["squeue"], squeue)
            report("opsctl status, 2,000 queued tasks and 1,000 other jobs", f"{ours:.2f} s", "1 s at most")
            report("  the same / squeue", f"{ours / other:.1f}", "")


def main() -> None:
    rows: list[tuple[str, str, str]] = []

    def report(name: str, figure: str, aim: str) -> None:
        rows.append((name, figure, aim))
        if "--json" not in sys.argv:
            print(f"{name:58} {figure:>10}   {aim}", flush=True)

    measure(report)
    if "--json" in sys.argv:
        print(json.dumps([dict(zip(("what", "figure", "aim"), row, strict=True)) for row in rows], indent=2))


if __name__ == "__main__":
    main()
