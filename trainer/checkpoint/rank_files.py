"""The files of one rank: written durably and hashed on the way; what fails is remembered and not raised."""

from __future__ import annotations

import hashlib
import os
from io import RawIOBase
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from opsctl.trainer.checkpoint.host_copy import HostCopies
from opsctl.trainer.manifest import FileRecord


class _Hashing:
    """A file being written that hashes what passes through."""

    def __init__(self, file: RawIOBase) -> None:
        self._file, self._digest, self.size = file, hashlib.sha256(), 0
        self.error: OSError | None = None
        """What the file system said; torch raises something else in its place."""

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        length = len(left)
        self._digest.update(left)
        try:
            while left:  # one call writes 2 GiB at most, and less where the disk is nearly full
                left = left[self._file.write(left) :]
        except OSError as error:
            self.error = error
            raise
        self.size += length
        return length

    def flush(self) -> None:
        """Nothing is held back; torch calls it."""

    def record(self) -> FileRecord:
        return FileRecord(size=self.size, sha256=self._digest.hexdigest())


def write_durably(content: Any, target: Path) -> FileRecord:
    """Have torch save `content`, under its name only when all of it is on disk. Raises OSError, RuntimeError."""
    part = target.with_name(target.name + ".part")
    with part.open("wb", buffering=0) as file:  # buffered, an error would come again when the file is closed
        hashing = _Hashing(file)
        try:
            torch.save(content, hashing)
        except RuntimeError as error:
            raise hashing.error or error from error
        os.fsync(file.fileno())
    part.replace(target)
    return hashing.record()


class RecordingEngine(TorchCheckpointEngine):  # type: ignore[misc]  # DeepSpeed has no types
    """Writes files durably and remembers their hashes; a failure is remembered, not raised.

    Raised, it would leave this rank out of the barriers that the others are waiting in. After `start(copying=True)`
    what is saved is only copied, and `write_copies` writes it, which another thread may do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, FileRecord] = {}
        self.errors: list[str] = []
        self._copying = False
        self._copies = HostCopies()
        self._unwritten: list[tuple[Any, Path]] = []

    def start(self, *, copying: bool = False) -> None:
        """Forget the save before."""
        self.files, self.errors, self._unwritten, self._copying = {}, [], [], copying

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - DeepSpeed's signature
        try:
            Path(path).mkdir(parents=True, exist_ok=exist_ok)
        except OSError as error:
            self.errors.append(f"{path}: {error}")

    def preserves_storage_sharing(self) -> bool:
        """Whether DeepSpeed should clone each layer, lest a view be written with all of its storage; copying does."""
        return not self._copying

    def save(self, state_dict: Any, path: str) -> None:
        target = Path(path)
        if not self._copying:
            self._write(state_dict, target)
            return
        try:
            self._unwritten.append((self._copies.copy(target.name, state_dict), target))
        except (MemoryError, RuntimeError) as error:  # no memory for the copies: said as a disk that is full would be
            self.errors.append(f"{target.name}: {error}")

    def write_copies(self) -> None:
        """Write what was copied since `start`."""
        for content, target in self._unwritten:
            self._write(content, target)
        self._unwritten = []

    def _write(self, content: Any, target: Path) -> None:
        try:
            self.files[target.name] = write_durably(content, target)
        except (OSError, RuntimeError) as error:
            self.errors.append(f"{target.name}: {getattr(error, 'strerror', None) or error}")
