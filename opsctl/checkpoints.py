"""The checkpoints of a train as they lie on disk: listed, verified, pruned. Needs no torch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import OpsctlError, RunDirError
from trainer import manifest
from trainer.contract import write_atomic
from trainer.manifest import Checkpoint, Manifest

_HASHERS = min(8, os.cpu_count() or 1)
"""Files that are hashed at a time; hashing lets go of the interpreter's lock."""


class Damaged(OpsctlError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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


def listed(directory: Path) -> list[Row]:
    """Every complete checkpoint in `directory`, oldest first. Reads manifests alone. Raises RunDirError."""
    with _told(directory):
        return [_row(each) for each in manifest.checkpoints(directory)]


def _row(checkpoint: Checkpoint) -> Row:
    try:
        held = manifest.read_manifest(checkpoint.path)
    except (OSError, ValueError) as error:
        return Row(step=checkpoint.step, path=checkpoint.path, problem=str(error))
    return Row(
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


def superfluous(
    directory: Path,
    *,
    keep_last: int,
    keep_every: int = 0,
    is_good: Callable[[Path], bool] = lambda path: not problems(path),
) -> list[Checkpoint]:
    """Which may go: never the newest two that are good, which are hashed to know. Raises RunDirError."""
    with _told(directory):
        found = manifest.checkpoints(directory)
        return manifest.superfluous(found, keep_last=keep_last, keep_every=keep_every, is_good=is_good)


def remove(checkpoints: Iterable[Checkpoint]) -> None:
    """Take them away; what a removal that was cut off has left, `sweep` takes. Raises RunDirError."""
    for each in checkpoints:
        with _told(each.path):
            manifest.remove(each.path)


def sweep(directory: Path) -> None:
    """Finish removals that were cut off. Raises RunDirError."""
    with _told(directory):
        manifest.sweep(directory)


def offloaded_to(checkpoint: Path) -> tuple[str, ...]:
    """Where copies of it were made, and verified there."""
    return tuple(str(json.loads(line)["to"]) for line in _text(checkpoint / manifest.OFFLOADED).splitlines())


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


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunDirError(f"{error.filename or path}: {error.strerror or error}") from error
