"""The bubble of pipeline schedules: DeepSpeed's against those of torch.distributed.pipelining.

python -P benchmarks/pipeline_schedules.py            a table; about five minutes
python -P benchmarks/pipeline_schedules.py --markdown --forward-ms 40

Passes of stages only sleep, so that the schedule is measured and not the processors. Four ranks each hold a quarter of
the model, in one stage or in two. The backward pass takes twice as long as the forward pass; half of its time is for
the gradient of the input. A figure is the bubble of the fastest step: its time in forward and backward passes of a
whole rank, less the micro-batches.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.calc.parallel_layout import Topology

sys.path.append(str(Path(__file__).parent))

RANKS = 4
MICRO_BATCHES = (4, 8, 16)
FORWARD_MS = 150.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schedule, and what the planner's formula knows of its like."""

    name: str
    library: str
    chunks: int = 1
    """Stages of a rank."""
    is_v: bool = False
    """A rank holds stages r and 2p - 1 - r, so that rank 0 has both ends of the model."""
    formula: str | None = "1f1b"
    least: int = 1
    """Micro-batches of a step."""

    def closed_form(self, micro_batches: int) -> float | None:
        """Return the bubble of `Topology.bubble`, in micro-batches."""
        if self.formula is None:
            return None
        share = Topology(tp=1, pp=RANKS, dp=1, chunks=self.chunks, schedule=self.formula).bubble(micro_batches)
        return micro_batches / (1 - share) - micro_batches


CASES = (
    Case(name="TrainSchedule", library="DeepSpeed"),
    Case(name="DualPipeVSchedule", library="DeepSpeed", chunks=2, is_v=True, formula=None, least=2 * RANKS),
    Case(name="ScheduleGPipe", library="torch"),
    Case(name="Schedule1F1B", library="torch"),
    Case(name="ScheduleInterleaved1F1B", library="torch", chunks=2),
    Case(name="ScheduleInterleavedZeroBubble", library="torch", chunks=2, formula="zero-bubble"),
    Case(name="ScheduleZBVZeroBubble", library="torch", chunks=2, is_v=True, formula=None),
    Case(name="ScheduleDualPipeV", library="torch", chunks=2, is_v=True, formula=None, least=2 * RANKS),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forward-ms", type=float, default=FORWARD_MS, help="of a rank's share of the model")
    parser.add_argument("--rounds", type=int, default=2, help="steps of every kind; the fastest counts (default: 2)")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        measure_rank(arguments.forward_ms / 1000, arguments.rounds)
    else:
        started = time.monotonic()
        print_table(start_ranks(sys.argv[1:]), markdown=arguments.markdown)
        print(f"{os.getloadavg()[0]:.1f} load, {time.monotonic() - started:.0f} s", file=sys.stderr)


def start_ranks(options: list[str]) -> list[list[float | None]]:
    """Return the bubble of every case at every number of micro-batches."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="pipeline-bench-") as place:
        result, log = Path(place, "figures.json"), Path(place, "log")
        ranks = []
        with log.open("w") as file:
            for rank in range(RANKS):
                fields = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "MASTER_PORT": port}
                env = {**os.environ, **fields, "OMP_NUM_THREADS": "1", "FIGURES": str(result)}
                words = [sys.executable, "-P", __file__, "--rank", *options]
                ranks.append(subprocess.Popen(words, env=env, stdout=file, stderr=file))
            codes = [rank.wait(timeout=600) for rank in ranks]
        if any(codes):
            sys.exit(log.read_text())
        figures: list[list[float | None]] = json.loads(result.read_text())
        return figures


def print_table(figures: list[list[float | None]], *, markdown: bool) -> None:
    form = "| {:41} | {:>14} | {:>14} | {:>14} |" if markdown else "{:41} {:>14} {:>14} {:>14}"
    print(form.format("bubble in micro-batches (closed form)", *(f"m = {number}" for number in MICRO_BATCHES)))
    if markdown:
        print(form.format("---", "---:", "---:", "---:"))
    for case, bubbles in zip(CASES, figures, strict=True):
        cells = []
        for number, bubble in zip(MICRO_BATCHES, bubbles, strict=True):
            expected = case.closed_form(number)
            text = "refused" if bubble is None else f"{bubble:.2f}"
            cells.append(text if expected is None else f"{text} ({expected:.2f})")
        print(form.format(f"{case.library}: {case.name}", *cells))


def measure_rank(forward_s: float, rounds: int) -> None:
    """Run every case on this rank; rank 0 writes the figures."""
    from opsctl.trainer import process_groups, rank_process

    process_groups.choose_accelerator()
    control = process_groups.connect(rank_process.from_environment(os.environ), timeout_s=120)

    from pipeline_stages import deepspeed_step, torch_step

    rows = []
    for case in CASES:
        make = deepspeed_step if case.library == "DeepSpeed" else torch_step
        step = make(case, forward_s)
        row = [bubble(step, m, forward_s, control, rounds) if m >= case.least else None for m in MICRO_BATCHES]
        rows.append(row)
    if control.process.is_first:
        Path(os.environ["FIGURES"]).write_text(json.dumps(rows))
    process_groups.leave(control, 0)


def bubble(step: Callable[[int], object], micro_batches: int, forward_s: float, control: Any, rounds: int) -> float:
    """Return the bubble of the fastest step, in micro-batches."""
    from pipeline_stages import Sleep

    Sleep.is_off = True
    step(micro_batches)  # agrees on shapes
    Sleep.is_off = False
    times, work_s = [], 3 * forward_s * micro_batches
    for _ in range(rounds):
        Sleep.slept_s = 0.0
        control.barrier()
        started = time.perf_counter()
        step(micro_batches)
        times.append(control.highest([time.perf_counter() - started])[0])
        if abs(Sleep.slept_s - work_s) > forward_s / 100:
            raise RuntimeError(f"the passes took {Sleep.slept_s:.3f} s, and should take {work_s:.3f} s")
    return min(times) / (3 * forward_s) - micro_batches


if __name__ == "__main__":
    main()
