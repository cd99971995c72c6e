"""A foreign trainer without torch that saves as Megatron-LM does: `tracked_trainer.py LAST EVERY STEP_S [WORDS...]`.

Checkpoints are iter_NNNNNNN directories in TRAIN_CHECKPOINT_DIR. The trainer resumes from the newest, which
latest_checkpointed_iteration.txt names; `--ckpt-step N` names another. It reads the stop request, and appends a line
with its first step and its words to the file `starts` beside the checkpoint directory.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

CHECKPOINTS = Path(os.environ["TRAIN_CHECKPOINT_DIR"])
TRACKER = CHECKPOINTS / "latest_checkpointed_iteration.txt"


def save(step: int) -> None:
    rank = CHECKPOINTS / f"iter_{step:07d}" / "mp_rank_00"
    rank.mkdir(parents=True, exist_ok=True)
    (rank / "model_optim_rng.pt").write_text(f"state of step {step} by {os.environ['TRAIN_ATTEMPT']}\n")
    TRACKER.write_text(str(step))


def main() -> None:
    last, every, step_s, words = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    resumed = int(TRACKER.read_text()) if TRACKER.exists() else 0
    if "--ckpt-step" in words:
        resumed = int(words[words.index("--ckpt-step") + 1])
    if resumed and not (CHECKPOINTS / f"iter_{resumed:07d}" / "mp_rank_00" / "model_optim_rng.pt").exists():
        sys.exit(f"no checkpoint of step {resumed}")
    with (CHECKPOINTS.parent / "starts").open("a") as starts:
        starts.write(f"{resumed} {' '.join(words)}".strip() + "\n")
    for step in range(resumed + 1, last + 1):
        time.sleep(step_s)
        sys.stdout.write(f" iteration {step:8d}/{last:8d} | lm loss: {2.5:.6E} |\n")
        sys.stdout.flush()
        is_asked = Path(os.environ["TRAIN_STOP_REQUEST"]).exists()
        if step % every == 0 or is_asked:
            save(step)
        if is_asked:
            return
    Path(os.environ["TRAIN_FINISHED"]).touch()


main()
