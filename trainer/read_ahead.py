"""Micro-batches ready before they are needed: read one step ahead, and copied to the device without a wait."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from opsctl.trainer.batches import Batches

MicroBatch = tuple[torch.Tensor, torch.Tensor]


class ReadAhead:
    """Reads the next step's micro-batches in a thread while this step computes: a slow disk delays no step.

    The samples of a step depend on the consumed samples and the batch alone, so that reading ahead changes nothing.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self._expected: tuple[int, int] | None = None
        self._read: Future[list[MicroBatch]] | None = None

    def start(self, consumed: int, batch: int) -> None:
        """Read the micro-batches of the step of `batch` samples after `consumed`, in the background."""
        self._expected = consumed, batch
        self._read = self._thread.submit(lambda: list(self.batches.step(consumed, batch)))

    def step(self, consumed: int, batch: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of a step, as `Batches.step` does, and raise its errors."""
        read, self._read = self._read, None
        if read is None or self._expected != (consumed, batch):
            return self.batches.step(consumed, batch)
        return iter(read.result())


def on_device(batches: Iterator[MicroBatch], device: torch.device) -> Iterator[MicroBatch]:
    """Return micro-batches on the device; for a CPU, as they are."""
    return iter(batches) if device.type == "cpu" else (_copied(micro_batch, device) for micro_batch in batches)


def _copied(value: Any, device: torch.device) -> Any:
    """Return a copy on a GPU of a tensor, or of nested tuples of tensors.

    From pinned memory: a copy from other memory waits until the GPU has done all its work.
    """
    if isinstance(value, torch.Tensor):
        return value.pin_memory().to(device, non_blocking=True)
    return tuple(_copied(part, device) for part in value)
