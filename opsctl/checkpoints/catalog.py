"""List, verify and prune the checkpoints of the embedded trainer. Needs no torch."""

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.state.files import MAX_RECORD_BYTES, read_text, write_atomic
from opsctl.trainer import manifest
from opsctl.trainer.manifest import Checkpoint, Manifest

_HASHERS = min(8, os.cpu_count() or 1)
"""Threads that hash files; hashing releases the interpreter lock."""


class Damaged(OpsctlError):
    """A checkpoint differs from the one that was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRow:
    """One checkpoint in a list."""

    step: int
    path: Path
    kind: str = ""
    size: int = 0
    topology: str = ""
    consumed_samples: int = 0
    keep_reason: str = ""
    """Why the checkpoint is never pruned; empty if prunable."""
    offloaded: tuple[str, ...] = ()
    """Destinations with a verified copy."""
    problem: str = ""
    """A problem visible without hashing: a file is missing or too short."""
    is_unread: bool = False
    """Whether the manifest is unreadable or invalid, so that nothing else is known."""


def find_checkpoints(directory: Path) -> list[Checkpoint]:
    """Return every complete checkpoint in `directory`, oldest first, including unreadable ones. Raises RunDirError."""
    try:
        return manifest.list_checkpoints(directory, with_unreadable=True)
    except OSError as error:
        raise RunDirError(cause(error, directory)) from error


def list_checkpoints(directory: Path) -> list[CatalogRow]:
    """Return a row for every checkpoint; reads only the manifests. Raises RunDirError."""
    return [_row(checkpoint) for checkpoint in find_checkpoints(directory)]


def _row(checkpoint: Checkpoint) -> CatalogRow:
    try:
        (checkpoint.path / manifest.COMPLETE).stat()
        record = manifest.read_manifest(checkpoint.path)
        return CatalogRow(
            step=checkpoint.step,
            path=checkpoint.path,
            kind=record.kind,
            size=size_of(record),
            topology=" ".join(f"{key}={value}" for key, value in record.topology.items()),
            consumed_samples=record.consumed_samples,
            keep_reason=manifest.read_keep(checkpoint.path)["reason"],
            offloaded=offloaded_to(checkpoint.path),
            problem="" if manifest.is_sound(checkpoint.path) else "a file is missing or too short",
        )
    except (OSError, ValueError) as error:
        return CatalogRow(step=checkpoint.step, path=checkpoint.path, problem=str(error), is_unread=True)


def size_of(record: Manifest) -> int:
    """Return the bytes of all files."""
    return sum(file.size for file in record.files.values())


def problems(checkpoint: Path) -> list[str]:
    """Hash every file and return the damages. Raises OSError: an unreadable checkpoint is unknown, not damaged."""

    def share(number: int) -> list[str]:
        return manifest.verify(checkpoint, mine=lambda n: n % _HASHERS == number)

    with ThreadPoolExecutor(_HASHERS) as pool:
        return sorted(set(chain.from_iterable(pool.map(share, range(_HASHERS)))))


def describe_doubt(checkpoint: Path) -> str:
    """Return why the checkpoint does not count as good: damaged or unreadable; empty if verified."""
    try:
        return "; ".join(problems(checkpoint))
    except OSError as error:
        return describe_unread(error, checkpoint)


def describe_unread(error: OSError, checkpoint: Path) -> str:
    """Return the message for a checkpoint that may or may not be sound."""
    return f"{checkpoint.name}: cannot be read, so it is left alone: {cause(error, checkpoint)}"


def find_superfluous(directory: Path, *, keep_last: int, keep_every: int = 0) -> tuple[list[Checkpoint], list[str]]:
    """Return the checkpoints that can be removed, and the problems of those that stay.

    The newest two good checkpoints, which are hashed, and unreadable ones always stay. Raises RunDirError.
    """
    doubts: dict[Path, str] = {}

    def is_good(path: Path) -> bool:
        doubts[path] = describe_doubt(path)
        return not doubts[path]

    removable = []
    for checkpoint in manifest.find_superfluous(
        find_checkpoints(directory), keep_last=keep_last, keep_every=keep_every, is_good=is_good
    ):
        try:
            manifest.verify(checkpoint.path, mine=lambda _: False)
        except OSError as error:
            doubts[checkpoint.path] = describe_unread(error, checkpoint.path)
        else:
            removable.append(checkpoint)
            doubts.pop(checkpoint.path, None)
    return removable, [doubts[path] for path in sorted(doubts) if doubts[path]]


def remove(checkpoints: Iterable[Checkpoint]) -> tuple[list[Checkpoint], list[str]]:
    """Remove checkpoints; return the removed ones, and the reasons for the others. `sweep` finishes an interrupted
    removal."""
    removed, failures = [], []
    for checkpoint in checkpoints:
        try:
            manifest.remove(checkpoint.path)
            removed.append(checkpoint)
        except OSError as error:
            failures.append(f"{checkpoint.path.name}: cannot be removed: {cause(error, checkpoint.path)}")
    return removed, failures


def sweep(directory: Path) -> list[str]:
    """Finish interrupted removals; return the failures."""
    try:
        manifest.sweep(directory)
    except OSError as error:
        return [f"what is left of a removed checkpoint stays: {cause(error, directory)}"]
    return []


def offloaded_to(checkpoint: Path) -> tuple[str, ...]:
    """Return the destinations that have a verified copy, as far as readable."""
    try:
        lines = _text(checkpoint / manifest.OFFLOADED).splitlines()
    except (OSError, ValueError):
        return ()
    return tuple(filter(None, map(_place, lines)))


def _place(line: str) -> str:
    try:
        return str(json.loads(line)["to"])
    except (ValueError, TypeError, KeyError, RecursionError):  # half written: another copy does no harm
        return ""


def note_offloaded(checkpoint: Path, *, to: str, at: str) -> None:
    """Record a verified copy at `to`. Raises OSError."""
    if to not in offloaded_to(checkpoint):
        path = checkpoint / manifest.OFFLOADED
        lines = [*_text(path).splitlines(), json.dumps({"to": to, "at": at})]
        write_atomic(path, "\n".join(lines) + "\n")


def _text(path: Path) -> str:
    try:
        return read_text(path, MAX_RECORD_BYTES).strip()
    except FileNotFoundError:
        return ""


def cause(error: OSError, path: Path) -> str:
    """Return the file and the reason of the failure."""
    return f"{error.filename or path}: {error.strerror}" if error.strerror else str(error)
