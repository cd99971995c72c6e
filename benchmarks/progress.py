"""How long the signs of progress of a foreign trainer take: `python -P benchmarks/progress.py`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opsctl.settings.loader import TrainSettings, parse
from opsctl.state.run_dir import RunDir
from opsctl.telemetry.progress.iteration_lines import tail
from opsctl.telemetry.progress.read_log import read_summary
from opsctl.telemetry.progress.signs import find_train_saves, read_log_signs

CHECKPOINTS = 3000
STEPS = 60_000
TITAN = (
    "[n1:0]: [titan] 2026-05-18 16:00:00,000 - root - INFO - step: {step:2}  loss:  2.50000  grad_norm:  1.8034  "
    "memory: 11.42GiB(14.43%)  tps: 7,250  tflops: 347.98  mfu: 35.18%\n"
)
MEGATRON = (
    " iteration {step:8}/  150000 | consumed samples:  123 | elapsed time per iteration (ms): 9411.7 | "
    "learning rate: 1.164E-05 | global batch size:   128 | lm loss: 5.218804E+00 | loss scale: 65536.0 | "
    "grad norm: 1.2 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
NOISE = "[n1:0]: NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n" * 5


def write_log(path: Path, line: str) -> None:
    with path.open("w") as log:
        for step in range(1, STEPS + 1):
            log.write(line.format(step=step) + NOISE)


def measure(name: str, function: Callable[[], object]) -> None:
    began, cpu_began = time.monotonic(), time.process_time()
    function()
    cpu_s, wall_s = time.process_time() - cpu_began, time.monotonic() - began
    sys.stdout.write(f"{name:50} {wall_s:6.2f} s, CPU {cpu_s:6.2f} s\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        run, saved, megatron = RunDir(top / "toy"), top / "saved", top / "megatron.txt"
        run.create()
        for number in range(CHECKPOINTS):
            checkpoint = saved / f"checkpoint-{number * 10}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "trainer_state.json").write_text("{}")
        write_log(run.main_log, TITAN)
        write_log(megatron, MEGATRON)
        fields = {"name": "toy", "slurm": {"nodes": 1, "time_limit": "2"}, "command": ["t", "--output_dir", str(saved)]}
        settings = parse(TrainSettings, fields, "train.toml")
        mib = run.main_log.stat().st_size >> 20
        measure(f"find_train_saves: {CHECKPOINTS} checkpoints", lambda: find_train_saves(run, settings))
        measure(f"read_log_signs: log of {mib} MiB", lambda: read_log_signs(run.main_log))
        measure("tail: the newest 240 steps", lambda: tail(run.main_log, 240))
        measure(f"read_summary: {STEPS} steps of torchtitan", lambda: read_summary(run.main_log))
        measure(f"read_summary: {STEPS} steps of Megatron", lambda: read_summary(megatron))


if __name__ == "__main__":
    main()
