"""New checkpoints from old ones: complete and verified, or not there, as those that training saves."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from opsctl.trainer import manifest
from opsctl.trainer.atomic_files import fsync_directory
from opsctl.trainer.checkpoint.host_copy import HostCopies, tensors_in
from opsctl.trainer.errors import Refused
from opsctl.trainer.manifest import FileRecord, Manifest

_REWRITTEN = ("config.json", "model.safetensors.index.json")
"""What an exported directory says of its weights. A tokenizer's files are not touched."""
_SHRUNK = "shrunk-"
_BEFORE = "before-shrinking-"


def verified(checkpoint: Path) -> Manifest:
    """The manifest of a checkpoint that is what was written. Raises Refused."""
    try:
        problems = manifest.verify(checkpoint)
        if problems:
            raise Refused("; ".join(problems))
        return manifest.read_manifest(checkpoint)
    except (OSError, ValueError) as error:
        raise Refused(str(error)) from error


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A directory to write into, which becomes `target` when the block ends well, and else is gone. Raises Refused,
    OSError."""
    if target.exists():
        raise Refused(f"{target} exists already")
    part = target.with_name(f".making-{target.name}")
    if part.exists():
        shutil.rmtree(part)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    fsync_directory(target.parent)


@contextlib.contextmanager
def new_checkpoint(target: Path, held: Manifest) -> Iterator[Path]:
    """As `new_directory`, with the manifest that makes it a checkpoint."""
    with new_directory(target) as part:
        yield part
        manifest.write_manifest(part, replace(held, files=_hashed(part)))


def _hashed(directory: Path) -> dict[str, FileRecord]:
    files = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        files[path.relative_to(directory).as_posix()] = FileRecord(size=path.stat().st_size, sha256=digest)
    return files


def load(path: Path) -> Any:
    """What torch saved at `path`, read as it is needed. Only for files of ours: they may hold any Python object."""
    return torch.load(path, map_location="cpu", weights_only=False, mmap=True)


def excess(path: Path) -> int:
    """Bytes that the file at `path` holds behind its tensors and that none of them shows."""
    shown: dict[int, int] = {}
    stored: dict[int, int] = {}
    for tensor in {id(tensor): tensor for tensor in tensors_in(load(path))}.values():
        storage = tensor.untyped_storage()
        stored[storage.data_ptr()] = storage.nbytes()
        shown[storage.data_ptr()] = shown.get(storage.data_ptr(), 0) + tensor.nbytes
    return sum(max(0, size - shown[where]) for where, size in stored.items())


def shrink(checkpoint: Path, *, dry_run: bool = False) -> dict[str, int]:
    """Write anew, in its place, each file whose tensors are seen in part only. Returns what each file was relieved of.

    Cut off at any moment, the checkpoint is there as it was or as it should be, if need be under the name that
    `finish_cut` puts right. Raises Refused if it is damaged.
    """
    _finish_swap(checkpoint)
    held = verified(checkpoint)
    relieved = {name: more for name in held.files if name.endswith(".pt") and (more := excess(checkpoint / name))}
    if dry_run or not relieved:
        return relieved
    with new_checkpoint(checkpoint.with_name(_SHRUNK + checkpoint.name), held) as part:
        for name in held.files:
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            if name in relieved:
                torch.save(HostCopies().copy(name, load(checkpoint / name)), part / name)
            else:
                os.link(checkpoint / name, part / name)
        for extra in (manifest.KEEP, manifest.OFFLOADED):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(checkpoint / extra, part)
    checkpoint.rename(checkpoint.with_name(_BEFORE + checkpoint.name))
    _finish_swap(checkpoint)
    return relieved


def finish_cut(path: Path) -> None:
    """Put right the checkpoint at `path`, or those in it, that shrinking left between two names. Raises OSError."""
    for left in (*path.parent.glob(_BEFORE + path.name), *path.glob(_BEFORE + "*")):
        _finish_swap(left.with_name(left.name.removeprefix(_BEFORE)))


def _finish_swap(checkpoint: Path) -> None:
    shrunk, before = (checkpoint.with_name(prefix + checkpoint.name) for prefix in (_SHRUNK, _BEFORE))
    if before.exists() and not checkpoint.exists():
        (shrunk if (shrunk / manifest.COMPLETE).exists() else before).rename(checkpoint)
        fsync_directory(checkpoint.parent)
    for left in (shrunk, before):
        if left.exists():
            manifest.remove(left)


def to_bf16(source: Path, target: Path) -> None:
    """Write the weights of `source` in bf16 to `target`, without what the optimizer knows.

    `source` is a checkpoint, and `target` then one of kind WEIGHTS; or a directory of `.safetensors`, as `export`
    writes them, and the rest of its files is copied. Raises Refused, OSError.
    """
    if (source / manifest.COMPLETE).exists():
        held = verified(source)
        names = [name for name in held.files if name.startswith("layer_")]
        if held.kind == manifest.UNIVERSAL or not names:
            raise Refused(f"{source} holds no layers, as the checkpoints that training saves do")
        with new_checkpoint(target, replace(held, kind=manifest.WEIGHTS, precision="bf16")) as part:
            for name in names:
                torch.save(_halved(load(source / name)), part / name)
    elif any(source.glob("*.safetensors")):
        _halve_safetensors(source, target)
    else:
        raise Refused(f"{source} is neither a checkpoint nor a directory with .safetensors")


def _halve_safetensors(source: Path, target: Path) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - of the `export` extra

    with new_directory(target) as part:
        for path in sorted(path for path in source.iterdir() if path.is_file()):
            if path.suffix == ".safetensors":
                save_file(_halved(load_file(path)), part / path.name, metadata={"format": "pt"})
            elif path.name not in _REWRITTEN:
                shutil.copy2(path, part)
        size = sum(path.stat().st_size for path in part.glob("*.safetensors"))
        for name in _REWRITTEN:
            if (source / name).exists():
                fields = _as_bf16(json.loads((source / name).read_text()), size=size)
                (part / name).write_text(json.dumps(fields, indent=1) + "\n")


def _as_bf16(fields: dict[str, Any], *, size: int) -> dict[str, Any]:
    """The config of transformers says what the weights are loaded as; it had another name for it before. The index says
    how many bytes they take."""
    fields = {key: "bfloat16" if key in ("dtype", "torch_dtype") else value for key, value in fields.items()}
    return fields | ({"metadata": fields["metadata"] | {"total_size": size}} if "metadata" in fields else {})


def _halved(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.to(torch.bfloat16) if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value
        for key, value in state.items()
    }
