"""The copy in host memory from which a save is written while training goes on."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch


class HostCopies:
    """Copies of nested containers of tensors, in memory that is kept from one save to the next.

    So only the first save of an attempt waits for the system to hand out the pages. A copy is as large as what is
    seen of a
    tensor, however much lies behind it. The next copy under the same name overwrites the last one.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}

    def copy(self, name: str, state: Any) -> Any:
        """`state` as it is now, whatever is done to it later."""
        copies: dict[int, Any] = {}
        for number, tensor in enumerate(tensors_in(state)):
            if id(tensor) not in copies:
                copies[id(tensor)] = self._copied((name, number), tensor)
        if any(tensor.is_cuda for tensor in tensors_in(state)):
            torch.cuda.synchronize()
        return copy.deepcopy(state, copies)  # all else: small, and changed by training as well

    def _copied(self, key: tuple[str, int], tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[key] = buffer
        return buffer.copy_(tensor.detach(), non_blocking=True)


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested containers, in their order, however often it is in them."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from tensors_in(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors_in(value)
