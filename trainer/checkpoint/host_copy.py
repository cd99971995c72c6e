"""The copy of the state in host memory, which a background save writes while training goes on."""

import copy
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_LEAST_PINNED_BYTES = 1 << 20
"""Buffers of this size have pages of their own."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for all contexts."""


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
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
            self._buffers[key] = buffer
            if tensor.is_cuda:
                pin(buffer)
        return buffer.copy_(tensor.detach(), non_blocking=True)


def pin(buffer: torch.Tensor, runtime: Any = None) -> bool:
    """Lock the pages of `buffer` so that a GPU copies into them at full speed; return whether that succeeded.

    torch's own pinned memory takes the next power of two: 8 GiB for a buffer of 4.1 GiB. Small buffers are copied fast
    enough without, and would share pages. `runtime` is CUDA's, unless a test has another one.
    """
    if buffer.nbytes < _LEAST_PINNED_BYTES:
        return False
    cuda = runtime or torch.cuda.cudart()
    if int(cuda.cudaHostRegister(buffer.data_ptr(), buffer.nbytes, _PORTABLE)):
        return False  # a limit on locked memory: the copy is slower and as correct
    weakref.finalize(buffer, cuda.cudaHostUnregister, buffer.data_ptr())
    return True


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
