"""`opsctl why --log` on a 2 GB log of 512 interleaved ranks, one of which failed: at most 10 s and 300 MB.

Runs on a log with iterations, and on a log without iterations, of which the last 256 MiB are read.
Removes the logs afterwards. `python benchmarks/why.py [DIRECTORY]`.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

RANKS = 512
SIZE = 2 << 30
NOISE = (
    b"[r10i%dn%d:%d]: [2026-03-01 12:%02d:%02d,%03d] [INFO] [logging.py:96:log_dist] time (ms) | "
    b"forward-compute: %.2f | backward-compute: %.2f | optimizer: %.2f | step %d\n"
)
ITERATION = (
    b"[r10i7n7:511]:  iteration %8d/  311541 | consumed samples: %12d | elapsed time per iteration (ms): 22306.6 | "
    b"learning rate: 9.850E-05 | global batch size:  1024 | lm loss: 2.775923E+00 | number of nan iterations:   0 |\n"
)
ECHO = (
    "Traceback (most recent call last):",
    '  File "pretrain_gpt.py", line 222, in <module>',
    "    pretrain(train_valid_test_datasets_provider, model_provider, forward_step,",
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    *(f"frame #{n}: <unknown function> + 0x6e0e5a (0x150152432e5a in /lib/libtorch_python.so)" for n in range(30)),
)


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp")  # noqa: S108 (its own file, removed again)
    log = directory / f"why-benchmark-{time.time_ns()}.log"
    try:
        for iterates in (True, False):
            make(log, iterates=iterates)
            measure(log, "with iterations" if iterates else "without any iteration")
    finally:
        log.unlink(missing_ok=True)


def make(log: Path, *, iterates: bool) -> None:
    crash = b"".join(make_crash())
    with log.open("wb") as file:
        step = 0
        while file.tell() < SIZE - len(crash):
            step += 1
            file.writelines(make_lines(step))
            if iterates:
                file.write(ITERATION % (step, step * 1024))
        file.write(crash)


def make_lines(step: int) -> Iterator[bytes]:
    for rank in range(RANKS):
        times = (step * 7919 % 10000 / 3, rank * 31 % 1000 / 7, step % 100 / 9)
        yield NOISE % (rank // 64, rank // 8 % 8, rank, step // 60 % 60, step % 60, rank, *times, step)


def make_crash() -> Iterator[bytes]:
    """Yield the lines of a crash: the echo of half of the ranks, the cause, the echo of the other ranks."""
    for rank in (*range(256), 41, *range(256, RANKS)):
        lines = ("RuntimeError: CUDA error: uncorrectable ECC error encountered",) if rank == 41 else ECHO
        for line in lines:
            yield f"[r10i{rank // 64}n{rank // 8 % 8}:{rank}]: {line}\n".encode()


def measure(log: Path, kind: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "opsctl", "why", "--log", str(log)], capture_output=True, text=True, check=True
    )
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{log.stat().st_size / 1e9:.2f} GB {kind}: {seconds:.1f} s ({cpu:.1f} s of CPU), {after.ru_maxrss >> 10} MB")
    print("\n".join(f"    {line}" for line in done.stdout.splitlines()[:3]))


if __name__ == "__main__":
    main()
