"""A foreign trainer without torch: `python -P foreign_trainer.py PLACE LAST EVERY MOST STEP_S`.

The trainer trains to step LAST, saves every EVERY steps, resumes from the newest checkpoint, and saves and exits after
MOST steps of a task. Files in PLACE cause faults: `bad-<node>` makes the ranks of that node die as on a failing GPU,
`bug` raises an error of the program, `mute` makes the trainer exit without output. While a file `pause-<step>` exists,
the trainer does not begin that step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main() -> None:
    place, (last, every, most), step_s = Path(sys.argv[1]), map(int, sys.argv[2:5]), float(sys.argv[5])
    rank, node, attempt = int(os.environ["RANK"]), os.environ["TRAIN_NODE"], os.environ["TRAIN_ATTEMPT"]
    checkpoints = Path(os.environ["TRAIN_CHECKPOINT_DIR"])
    first = max((int(path.name) for path in checkpoints.glob("[0-9]*")), default=0) + 1
    leave = min(last, first + most - 1)
    for step in range(first, leave + 1):
        time.sleep(step_s)
        while (place / f"pause-{step}").exists():
            time.sleep(0.02)
        if (place / f"bad-{node}").exists():
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
        if (place / "bug").exists():
            raise KeyError("learning_rate")
        if (place / "mute").exists():
            sys.exit(3)
        if rank == 0:
            sys.stdout.write(f" iteration {step:8d}/{last:8d} | lm loss: {2.5:.6E} |\n")
            sys.stdout.flush()
            with (place / "steps").open("a") as steps:
                steps.write(f"{attempt} {node} {step}\n")
            if step % every == 0 or step == leave:
                (checkpoints / ".new").mkdir(exist_ok=True)
                (checkpoints / ".new").rename(checkpoints / str(step))


main()
