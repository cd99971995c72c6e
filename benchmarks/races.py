"""Races of opsctl against the plain recipe on several schedules of faults, each run several times: hours in all.

python -P benchmarks/races.py                         three schedules, three runs each, about 100 minutes
python -P benchmarks/races.py --schedule none --runs 1 --seconds 600
python -P benchmarks/races.py --contender plain --contender opsctl        opsctl tuned

As shipped, opsctl races with default settings (`opsctl-default`): the trainer has a checkpoint directory of its own, no
heartbeat, no stop file, and tasks of two minutes. One race runs all contenders side by side (effective_time.py). The
results of finished races are kept in build/races.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "races.json"
SCHEDULES = {"none": "", "without-gpu": "rank,disk,hang,node,bug", "full": "gpu,rank,disk,hang,node,bug"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", action="append", choices=SCHEDULES, help="may be repeated (default: all)")
    parser.add_argument("--contender", action="append", help="may be repeated (default: plain, opsctl-default)")
    parser.add_argument("--runs", type=int, default=3, help="races on each schedule, each with its seed (default: 3)")
    parser.add_argument("--seconds", type=float, default=600, help="of one race (default: 600)")
    parser.add_argument("--at-once", type=int, default=1, help="races of a schedule at the same time (default: 1)")
    namespace = parser.parse_args()
    names = namespace.contender or ["plain", "opsctl-default"]
    results: dict[str, list[dict[str, Any]]] = {}
    RESULTS.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(namespace.at_once) as pool:
        for schedule in namespace.schedule or SCHEDULES:
            start = partial(race, schedule, names, seconds=namespace.seconds)
            for seed, result in enumerate(pool.map(start, range(1, namespace.runs + 1)), start=1):
                results.setdefault(schedule, []).append(result)
                RESULTS.write_text(json.dumps(results, indent=1))
                print(f"{schedule}, seed {seed}: {describe(result)}", file=sys.stderr, flush=True)
    print(table(results, names))
    return 0


def race(schedule: str, names: list[str], seed: int, *, seconds: float) -> dict[str, Any]:
    """Return the result of each contender, by its name."""
    place = str(RESULTS.parent / "race" / f"{schedule}-{seed}")
    options = ["--faults", SCHEDULES[schedule], "--seed", str(seed), "--seconds", str(seconds), "--place", place]
    options.append("--json")
    for name in names:
        options += ["--contender", name]
    words = [sys.executable, "-P", str(ROOT / "benchmarks" / "effective_time.py"), *options]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=seconds + 300)
    return {result["contender"]: result for result in json.loads(done.stdout)}


def describe(result: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {fields['share']:.1%} in {fields['attempts']} attempts" for name, fields in result.items()
    )


def table(results: dict[str, list[dict[str, Any]]], names: list[str]) -> str:
    """Return one row per schedule: of each contender the median, and all runs."""
    lines = [f"| faults | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for schedule, races in results.items():
        cells = []
        for name in names:
            shares = [run[name]["share"] for run in races]
            runs = ", ".join(f"{100 * share:.1f}" for share in shares)
            cells.append(f"**{statistics.median(shares):.1%}** ({runs})")
        lines.append(f"| {schedule} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
