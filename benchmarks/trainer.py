"""What the trainer costs over plain torch, as ratios within one run: these machines are noisy, so no figure is a test.

python benchmarks/trainer.py            a table; takes some minutes on two cores
python benchmarks/trainer.py --markdown --rounds 9
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).parent))

from trainer_corpus import write_corpus

RANKS = Path(__file__).with_name("trainer_ranks.py")
AIMS = (
    ("plain", 1, "one process / plain torch", "{ratio:.3f}", "0.97 at least", lambda f: f["ratio"] >= 0.97),
    ("ddp", 2, "data 2 / DDP", "{ratio:.3f}", "0.95 at least", lambda f: f["ratio"] >= 0.95),
    (
        "plain-large",
        1,
        "the same, four times the samples a step",
        "{ratio:.3f}",
        "0.97 at least",
        lambda f: f["ratio"] >= 0.97,
    ),
    (
        "ddp-large",
        2,
        "data 2 / DDP, four times the samples a step",
        "{ratio:.3f}",
        "0.95 at least",
        lambda f: f["ratio"] >= 0.95,
    ),
    ("loss", 1, "loss in chunks / torch's", "{ratio:.2f} x", "1 x at least", lambda f: f["ratio"] >= 1),
    ("adamw", 1, "fused AdamW / operation by operation", "{ratio:.2f} x", "1 x at least", lambda f: f["ratio"] >= 1),
    (
        "pipeline",
        2,
        "pipeline 2, 8 micro-batches: efficiency",
        "{efficiency:.3f}",
        "8/9 = 0.889 within 5 %",
        lambda f: 0.95 <= f["ratio"] <= 1.05,
    ),
    (
        "extras",
        2,
        "switches, heartbeat, guards, log: share of a step",
        "{share:.2%}",
        "1 % at most",
        lambda f: f["share"] <= 0.01,
    ),
    (
        "saving",
        1,
        "background save: stall / synchronous save",
        "{share:.1%}",
        "10 % at most",
        lambda f: f["share"] <= 0.10,
    ),
    ("loading", 1, "data loading / what the step needs", "{times:.0f} x", "20 x at least", lambda f: f["times"] >= 20),
)
"""What is run, on how many processes, what it is called, its figure, what is aimed at, and whether that is met."""


def measured(what: str, processes: int, directory: Path, rounds: int) -> Mapping[str, float]:
    """The figures of one kind, from ranks of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    argv = [sys.executable, "-P", str(RANKS), what, str(directory), str(rounds)]
    with (directory / f"{what}.log").open("w") as log:
        ranks = []
        for rank in range(processes):
            fields = {"RANK": rank, "WORLD_SIZE": processes, "LOCAL_RANK": rank, "MASTER_PORT": port}
            env = {**os.environ, **{name: str(value) for name, value in fields.items()}}
            env |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
            ranks.append(subprocess.Popen(argv, env=env, stdout=log, stderr=log))
        codes = [rank.wait(timeout=600) for rank in ranks]
    if any(codes):
        sys.exit((directory / f"{what}.log").read_text())
    figures: Mapping[str, float] = json.loads((directory / f"{what}.json").read_text())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=[row[0] for row in AIMS])
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    form = "| {:52} | {:>10} | {:22} | {:6} |" if arguments.markdown else "{:52} {:>10}   {:22} {}"
    started = time.monotonic()
    print(form.format("what", "figure", "aim", ""), flush=True)
    if arguments.markdown:
        print(form.format("---", "---:", "---", "---"))
    with tempfile.TemporaryDirectory(prefix="trainer-bench-") as place:
        write_corpus(Path(place))
        for what, processes, name, text, aim, is_met in AIMS:
            if arguments.only and what not in arguments.only:
                continue
            figures = measured(what, processes, Path(place), arguments.rounds)
            print(form.format(name, text.format(**figures), aim, "" if is_met(figures) else "missed"), flush=True)
            details = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            print(f"  {what}: {details}", file=sys.stderr, flush=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
