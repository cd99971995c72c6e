"""The copy of the state in host memory, which a background save writes while training goes on."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch


class HostCopies:
    """Copies of nested containers of tensors, in buffers that are reused by the next save.

    Reuse makes only the first save of an attempt wait for the allocation of pages. A copy has the size of the tensor,
    not of its storage. The next copy under the same name overwrites the last copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}

    def copy(self, name: str, state: Any) -> Any:
        """Return a copy of `state` that later changes do not affect."""
        copies: dict[int, Any] = {}
        for number, tensor in enumerate(tensors_in(state)):
            if id(tensor) not in copies:
                copies[id(tensor)] = self._copied((name, number), tensor)
        if any(tensor.is_cuda for tensor in tensors_in(state)):
            torch.cuda.synchronize()
        return copy.deepcopy(state, copies)  # the other objects are small, and training changes them too

    def _copied(self, key: tuple[str, int], tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[key] = buffer
        return buffer.copy_(tensor.detach(), non_blocking=True)


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in nested containers, in order and with repetitions."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from tensors_in(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors_in(value)
