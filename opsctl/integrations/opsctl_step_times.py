"""Each rank's own step times, for opsctl to find slow nodes: one file of the standard library, to copy.

    import opsctl_step_times

    times = opsctl_step_times.StepTimes()    # does nothing outside a train of opsctl
    for step in range(first, last + 1):
        with times.compute():                # on every rank, any number of times a step
            loss = model(batch)
        ...
        times.end_step()
    times.write()

The block must not wait for other ranks: all ranks of a synchronous training take the same time for a whole step. With
data parallelism the forward pass is such a block; with FSDP or ZeRO-3 it is none.
"""

import contextlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

WRITE_EVERY_S = 300.0
MAX_STEPS = 1000
"""Latest steps in the median."""
MAX_OPEN_STEPS = 100
"""Steps whose times the GPU has not measured yet."""


class StepTimes:
    """Measures this rank's own work, on a GPU by events in its stream, without a wait of the host."""

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, work: str = "", every_s: float = WRITE_EVERY_S
    ) -> None:
        """`work`: ranks with the same text do the same work, such as `stage 2`; only these are compared."""
        self._environ = os.environ if environ is None else environ
        directory = self._environ.get("TRAIN_STEP_TIMES_DIR")
        self._directory = Path(directory) if directory else None
        self._work, self._every_s, self._written_at = work, every_s, time.monotonic()
        self._device, self._problem = "", ""
        self._blocks: list[tuple[Any, Any]] = []
        self._open: deque[list[tuple[Any, Any]]] = deque(maxlen=MAX_OPEN_STEPS)
        self._seconds: deque[float] = deque(maxlen=MAX_STEPS)

    @contextlib.contextmanager
    def compute(self) -> Iterator[None]:
        """Measure a block of this rank's own work."""
        if self._directory is None:
            yield
            return
        begin = self._mark()
        yield
        end = self._mark()
        if isinstance(begin, float) == isinstance(end, float):  # not if the block was the first to use the GPU
            self._blocks.append((begin, end))

    def drop(self) -> None:
        """Forget the blocks since the last step, such as those of an evaluation."""
        self._blocks = []

    def end_step(self) -> None:
        """Add the step; write the file if it is older than `every_s`."""
        if self._blocks:
            self._open.append(self._blocks)
            self._blocks = []
        self._collect()
        if time.monotonic() - self._written_at >= self._every_s:
            self.write()

    def write(self) -> None:
        """Write the median of the latest steps; call this once more at the end. Raises nothing."""
        self._written_at = time.monotonic()
        self._collect()
        if self._directory is None or not self._seconds:
            return
        rank = self._number("RANK", "SLURM_PROCID")
        record = {
            "node": self._environ.get("TRAIN_NODE") or self._environ.get("SLURMD_NODENAME") or os.uname().nodename,
            "rank": rank,
            "local_rank": self._number("LOCAL_RANK", "SLURM_LOCALID"),
            "steps": len(self._seconds),
            "compute_s": median(self._seconds),
            "work": f"{self._work} on {self._device or 'CPU'}".strip(),
        }
        try:
            self._directory.mkdir(exist_ok=True)
            temporary = self._directory / f".{rank}.{os.getpid()}"
            temporary.write_text(json.dumps(record) + "\n")
            temporary.replace(self._directory / f"{rank}.json")
        except OSError as error:
            if not self._problem:
                self._problem = f"opsctl: the step times in {self._directory} cannot be written: {error}"
                print(self._problem, flush=True)  # noqa: T201 (the log is stdout)

    def _collect(self) -> None:
        """Add the steps that the GPU has ended."""
        while self._open and (not self._device or self._open[0][-1][1].query()):
            blocks = self._open.popleft()
            if self._device:
                self._seconds.append(sum(begin.elapsed_time(end) for begin, end in blocks) / 1000)
            else:
                self._seconds.append(sum(end - begin for begin, end in blocks))

    def _mark(self) -> Any:
        torch: Any = sys.modules.get("torch")
        if not self._device and not (torch and torch.cuda.is_available() and torch.cuda.is_initialized()):
            return time.monotonic()
        if not self._device:
            self._device = torch.cuda.get_device_name()
            self._blocks.clear()  # measured before the GPU was in use
            self._open.clear()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _number(self, *names: str) -> int:
        return int(next((self._environ[name] for name in names if self._environ.get(name)), "0"))
