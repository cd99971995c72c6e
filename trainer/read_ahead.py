"""Micro-batches ready before they are needed: read one step ahead, and copied to the device without a wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch

from opsctl.trainer.batches import Batches

MicroBatch = tuple[torch.Tensor, torch.Tensor]


class ReadAhead:
    """Reads the next step's micro-batches in a thread while this step computes: a slow disk delays no step.

    The samples of a step depend on the consumed samples and the batch alone, so that reading ahead changes nothing.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self._expected: tuple[int, int] | None = None
        self._read: Future[list[MicroBatch]] | None = None

    def start(self, consumed: int, batch: int) -> None:
        """Read the micro-batches of the step of `batch` samples after `consumed`, in the background."""
        self._expected = consumed, batch
        self._read = self._thread.submit(lambda: list(self._batches.step(consumed, batch)))

    def step(self, consumed: int, batch: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of a step, as `Batches.step` does, and raise its errors."""
        read, self._read = self._read, None
        if read is None or self._expected != (consumed, batch):
            return self._batches.step(consumed, batch)
        return iter(read.result())


class Device(Protocol):
    """The two moves that copy a tensor to a device while the device computes."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor: ...

    def copy(self, tensor: torch.Tensor) -> torch.Tensor: ...


class PinnedCopies:
    """Copies from pinned memory: a copy from other memory waits until the GPU has done all its work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True)


def device_of(device: torch.device) -> Device | None:
    """Return the moves to a GPU; None for a CPU, where batches stay as they are."""
    return PinnedCopies(device) if device.type == "cuda" else None


def on_device(batches: Iterator[MicroBatch], device: Device | None) -> Iterator[MicroBatch]:
    """Yield micro-batches on the device."""
    if device is None:
        yield from batches
        return
    for micro_batch in batches:
        yield _moved(micro_batch, device)


def _moved(value: Any, device: Device) -> Any:
    """Return a tensor, or nested tuples of tensors, on the device."""
    if isinstance(value, torch.Tensor):
        return device.copy(device.pin(value))
    return tuple(_moved(part, device) for part in value)
