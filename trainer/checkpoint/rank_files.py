"""The files of one rank: written durably and hashed while written; failures are recorded and not raised."""

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
