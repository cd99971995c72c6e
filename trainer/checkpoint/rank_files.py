"""The files of one rank: written durably and hashed while written; failures are recorded and not raised.

A background save writes them from a copy of the state in host memory while training goes on.
"""

import copy
import hashlib
import os
import weakref
from collections.abc import Iterator, Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from opsctl.trainer.manifest import FileRecord

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


class _Hashing:
    """A file that hashes its data while torch writes."""

    def __init__(self, file: RawIOBase) -> None:
        self._file, self._digest, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None
        """The error of the file system; torch raises another error in its place."""

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        length = len(rest)
        self._digest.update(rest)
        try:
            while rest:  # a call writes at most 2 GiB, and less on a nearly full disk
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.error = error
            raise
        self.size += length
        return length

    def flush(self) -> None:
        """Do nothing: the file is unbuffered. torch calls this method."""

    def record(self) -> FileRecord:
        return FileRecord(size=self.size, sha256=self._digest.hexdigest())


def write_durably(content: Any, target: Path) -> FileRecord:
    """Save `content` with torch; rename the file to `target` when it is on disk. Raises OSError, RuntimeError."""
    part = target.with_name(target.name + ".part")
    with part.open("wb", buffering=0) as file:  # a buffered file would raise the error again at close
        hashing = _Hashing(file)
        try:
            torch.save(content, hashing)
        except RuntimeError as error:
            raise hashing.error or error from error
        os.fsync(file.fileno())
    part.replace(target)
    return hashing.record()


class RecordingEngine(TorchCheckpointEngine):  # type: ignore[misc]  # DeepSpeed has no types
    """Writes files durably and records their hashes; a failure is recorded, not raised.

    A raised error would keep this rank out of the barriers in which the other ranks wait. After `start(copying=True)`,
    `save` only copies the state; `write_copies`, which another thread may call, writes the copies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, FileRecord] = {}
        self.errors: list[str] = []
        self._copying = False
        self._copies = HostCopies()
        self._unwritten: list[tuple[Any, Path]] = []

    def start(self, *, copying: bool = False) -> None:
        """Forget the previous save."""
        self.files, self.errors, self._unwritten, self._copying = {}, [], [], copying

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - DeepSpeed's signature
        try:
            Path(path).mkdir(parents=True, exist_ok=exist_ok)
        except OSError as error:
            self.errors.append(f"{path}: {error}")

    def preserves_storage_sharing(self) -> bool:
        """Return whether DeepSpeed must clone layers to write views without their storage; copies need no clone."""
        return not self._copying

    def save(self, state_dict: Any, path: str) -> None:
        target = Path(path)
        if not self._copying:
            self._write(state_dict, target)
            return
        try:
            self._unwritten.append((self._copies.copy(target.name, state_dict), target))
        except (MemoryError, RuntimeError) as error:  # no memory for the copies: reported like a full disk
            self.errors.append(f"{target.name}: {error}")

    def write_copies(self) -> None:
        """Write the copies made since `start`."""
        for content, target in self._unwritten:
            self._write(content, target)
        self._unwritten = []

    def _write(self, content: Any, target: Path) -> None:
        try:
            self.files[target.name] = write_durably(content, target)
        except (OSError, RuntimeError) as error:
            self.errors.append(f"{target.name}: {getattr(error, 'strerror', None) or error}")
