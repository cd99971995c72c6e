"""The checkpoints of a train as they lie on disk: listed, verified, pruned. Needs no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import OpsctlError, RunDirError
from opsctl.state.files import write_atomic
from opsctl.trainer import manifest
from opsctl.trainer.manifest import Checkpoint, Manifest

_HASHERS = min(8, os.cpu_count() or 1)
"""Files that are hashed at a time; hashing lets go of the interpreter's lock."""


class Damaged(OpsctlError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRow:
    """One checkpoint, as a list shows it."""

    step: int
    path: Path
    kind: str = ""
    size: int = 0
    topology: str = ""
    consumed_samples: int = 0
    kept: str = ""
    """Why it is never pruned; empty if it may be."""
    offloaded: tuple[str, ...] = ()
    """Where else it lies."""
    problem: str = ""
    """What is seen to be wrong without reading it: a file that is missing or too short."""
    is_unread: bool = False
    """Its manifest cannot be read or understood: nothing more is known of it."""


def find_checkpoints(directory: Path) -> list[Checkpoint]:
    """Every complete checkpoint in `directory`, oldest first, and those that cannot be looked into: the others are not
    to wait for them. Raises RunDirError."""
    try:
        return manifest.list_checkpoints(directory, with_unreadable=True)
    except OSError as error:
        raise RunDirError(cause(error, directory)) from error


def list_checkpoints(directory: Path) -> list[CatalogRow]:
    """A row for each that is found. Reads manifests alone. Raises RunDirError."""
    return [_row(checkpoint) for checkpoint in find_checkpoints(directory)]


def _row(checkpoint: Checkpoint) -> CatalogRow:
    try:
        return _read_row(checkpoint)
    except (OSError, ValueError) as error:
        return CatalogRow(step=checkpoint.step, path=checkpoint.path, problem=str(error), is_unread=True)


def _read_row(checkpoint: Checkpoint) -> CatalogRow:
    (checkpoint.path / manifest.COMPLETE).stat()
    held = manifest.read_manifest(checkpoint.path)
    return CatalogRow(
        step=checkpoint.step,
        path=checkpoint.path,
        kind=held.kind,
        size=size_of(held),
        topology=" ".join(f"{key}={value}" for key, value in held.topology.items()),
        consumed_samples=held.consumed_samples,
        kept=_text(checkpoint.path / manifest.KEEP),
        offloaded=offloaded_to(checkpoint.path),
        problem="" if manifest.is_sound(checkpoint.path) else "a file is missing or too short",
    )


def size_of(held: Manifest) -> int:
    return sum(record.size for record in held.files.values())


def problems(checkpoint: Path) -> list[str]:
    """What is not as it was written, every file hashed. What cannot be read is unknown, not damaged: OSError."""

    def share(number: int) -> list[str]:
        return manifest.verify(checkpoint, mine=lambda n: n % _HASHERS == number)

    with ThreadPoolExecutor(_HASHERS) as pool:
        return sorted({problem for found in pool.map(share, range(_HASHERS)) for problem in found})


def describe_doubt(checkpoint: Path) -> str:
    """Why it does not count as good: what is damaged, or that it cannot be read; empty if it verifies."""
    try:
        return "; ".join(problems(checkpoint))
    except OSError as error:
        return describe_unread(error, checkpoint)


def describe_unread(error: OSError, checkpoint: Path) -> str:
    """The words for a checkpoint that may be sound or not."""
    return f"{checkpoint.name}: cannot be read, so it is left alone: {cause(error, checkpoint)}"


def find_superfluous(directory: Path, *, keep_last: int, keep_every: int = 0) -> tuple[list[Checkpoint], list[str]]:
    """Which may go: never the newest two that are good, which are hashed to know, nor one that cannot be read. And what
    is wrong with those that stay, as far as it was seen. Raises RunDirError."""
    doubts: dict[Path, str] = {}

    def is_good(path: Path) -> bool:
        doubts[path] = describe_doubt(path)
        return not doubts[path]

    gone = []
    for superfluou in manifest.find_superfluous(
        find_checkpoints(directory), keep_last=keep_last, keep_every=keep_every, is_good=is_good
    ):
        try:
            manifest.verify(superfluou.path, mine=lambda _: False)
        except OSError as error:
            doubts[superfluou.path] = describe_unread(error, superfluou.path)
        else:
            gone.append(superfluou)
            doubts.pop(superfluou.path, None)
    return gone, [doubts[path] for path in sorted(doubts) if doubts[path]]


def remove(checkpoints: Iterable[Checkpoint]) -> tuple[list[Checkpoint], list[str]]:
    """Take them away: those that are gone, and why others are not. What a removal that was cut off has left, `sweep`
    takes."""
    gone, failed = [], []
    for checkpoint in checkpoints:
        try:
            manifest.remove(checkpoint.path)
            gone.append(checkpoint)
        except OSError as error:
            failed.append(f"{checkpoint.path.name}: cannot be removed: {cause(error, checkpoint.path)}")
    return gone, failed


def sweep(directory: Path) -> list[str]:
    """Finish removals that were cut off: what of them cannot be."""
    try:
        manifest.sweep(directory)
    except OSError as error:
        return [f"what is left of a removed checkpoint stays: {cause(error, directory)}"]
    return []


def offloaded_to(checkpoint: Path) -> tuple[str, ...]:
    """Where copies of it were made, and verified there, as far as that can be read."""
    try:
        lines = _text(checkpoint / manifest.OFFLOADED).splitlines()
    except (OSError, ValueError):
        return ()
    return tuple(filter(None, map(_place, lines)))


def _place(line: str) -> str:
    try:
        return str(json.loads(line)["to"])
    except (ValueError, TypeError, KeyError):  # half written: copying again does no harm
        return ""


def note_offloaded(checkpoint: Path, *, to: str, at: str) -> None:
    """Remember that a verified copy lies at `to`. Raises OSError."""
    if to not in offloaded_to(checkpoint):
        path = checkpoint / manifest.OFFLOADED
        lines = [*_text(path).splitlines(), json.dumps({"to": to, "at": at})]
        write_atomic(path, "\n".join(lines) + "\n")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def cause(error: OSError, path: Path) -> str:
    """What failed, and on which file."""
    return f"{error.filename or path}: {error.strerror}" if error.strerror else str(error)
