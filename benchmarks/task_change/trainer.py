"""A trainer without start-up: `python -I -S trainer.py PLACE CHECKPOINTS SECONDS`. Every rank notes its steps."""

import os
import sys
import time

place, checkpoints, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
rank, job = os.environ["SLURM_PROCID"], os.environ["SLURM_JOB_ID"]
os.makedirs(checkpoints, exist_ok=True)
first = max((int(name) for name in os.listdir(checkpoints) if name.isdigit()), default=0) + 1
with open(f"{place}/steps", "a", buffering=1) as steps:  # one line is one write: ranks share the file
    begin = time.time()
    steps.write(f"{job} {rank} {begin!r}\n")
    for step in range(first, first + 10):
        time.sleep(seconds / 10)
        if rank == "0":
            print(f" iteration {step:8d}/ 1000000 | lm loss: {2 + 5 / step:.6E} |", flush=True)
    if rank == "0":
        os.mkdir(f"{checkpoints}/{step}")
    steps.write(f"{job} {rank} {time.time()!r}\n")
