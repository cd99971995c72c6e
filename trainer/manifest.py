"""A checkpoint on disk: what makes one complete, which is the newest, and whether it is still what was written.

    checkpoints/
      step-0001000/
        …            the files of DeepSpeed and one `rank-….pt` of each rank
        manifest.json  name, size and SHA-256 of each file; step, samples, topology, model
        COMPLETE       SHA-256 of manifest.json; written last, and the only thing that makes the directory a checkpoint
      damaged-step-0000500/   set aside: it was complete once and did not verify
      .saving-step-…/         a save in progress, or cut short

There is no `latest`: it is derived from what is there. Beside the files that the manifest names a checkpoint may hold
KEEP, which says why it is never pruned, and OFFLOADED, which says where else it lies.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from opsctl.trainer.atomic_files import fsync_directory, write_atomic

MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"
KEEP = "KEEP"
_REMOVING = ".removing-"
OFFLOADED = "OFFLOADED"
_NAME = re.compile(r"step-(\d{7,})")
_FORMAT = 1
NATIVE, UNIVERSAL, WEIGHTS = "native", "universal", "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file of a checkpoint: bytes, and SHA-256 in hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds."""

    step: int
    consumed_samples: int
    topology: Mapping[str, int | str]
    """How the state is cut: sizes of the parallel axes, ZeRO stage, balance of the stages."""
    model: Mapping[str, Any]
    """The config's model table, so that a checkpoint of another model is refused by name."""
    precision: str
    kind: str = NATIVE
    """NATIVE: resumed by the topology that wrote it; UNIVERSAL: by any, in any precision; WEIGHTS: by none."""
    seed: int | None = None
    """Of the run that wrote it; None if an earlier version did."""
    data: str = ""
    """What it was trained on: tokens, samples and weight of each corpus. Other data would come in another order."""
    slowest_step_s: float = 0.0
    save_s: float = 0.0
    """How long this save took up to the manifest; with the slowest step, what the next attempt plans its end by."""
    files: Mapping[str, FileRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class Checkpoint:
    """A complete checkpoint; whether it still verifies is another question."""

    step: int
    path: Path


def directory_name(step: int) -> str:
    return f"step-{step:07d}"


def list_checkpoints(directory: Path, *, with_unreadable: bool = False) -> list[Checkpoint]:
    """The complete checkpoints in `directory`, oldest first; none if it does not exist.

    One that cannot be looked into raises OSError, or is among them.
    """
    try:
        paths = list(directory.iterdir())
    except FileNotFoundError:
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in paths)
    return sorted(
        Checkpoint(int(m[1]), path) for m, path in named if m and _is_complete(path, if_unreadable=with_unreadable)
    )


def _is_complete(checkpoint: Path, *, if_unreadable: bool) -> bool:
    try:
        return (checkpoint / COMPLETE).is_file()
    except OSError:
        if if_unreadable:
            return True
        raise


def find_newest_complete(directory: Path) -> Checkpoint | None:
    """The newest complete checkpoint in `directory`, if any."""
    return max(list_checkpoints(directory), default=None)


def read_manifest(checkpoint: Path) -> Manifest:
    """The manifest of `checkpoint`. Raises OSError, or ValueError if it cannot be understood."""
    given = json.loads((checkpoint / MANIFEST).read_text())
    try:
        if given.pop("format") != _FORMAT:
            raise ValueError(f"{checkpoint}: this is not a manifest of format {_FORMAT}")
        files = {name: FileRecord(**record) for name, record in given.pop("files").items()}
        return Manifest(**given, files=files)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{checkpoint}: the manifest cannot be understood: {error}") from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest and then COMPLETE into `directory`. Raises OSError."""
    text = json.dumps({"format": _FORMAT, **asdict(manifest)}, indent=1, sort_keys=True) + "\n"
    write_atomic(directory / MANIFEST, text)
    write_atomic(directory / COMPLETE, hashlib.sha256(text.encode()).hexdigest() + "\n")


def verify(checkpoint: Path, *, mine: Callable[[int], bool] = lambda _: True) -> list[str]:
    """What is not as it was written, one sentence each; the files whose number `mine` picks are hashed.

    What cannot be read (permission, I/O error; a manifest of another version) is not damage but unknown, and raises
    OSError.
    """
    try:
        marked = (checkpoint / COMPLETE).read_text().strip()
        text = (checkpoint / MANIFEST).read_bytes()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        return [f"{checkpoint.name}: not complete ({error})"]
    if hashlib.sha256(text).hexdigest() != marked:
        return [f"{checkpoint.name}: {MANIFEST} is not the one that COMPLETE was written for"]
    try:
        files = sorted(read_manifest(checkpoint).files.items())
    except ValueError as error:
        raise OSError(str(error)) from error
    wrong = (_wrong(name, checkpoint / name, record) for number, (name, record) in enumerate(files) if mine(number))
    return [f"{checkpoint.name}: {problem}" for problem in wrong if problem]


def _wrong(name: str, path: Path, record: FileRecord) -> str:
    try:
        size = path.stat().st_size
        if size != record.size:
            return f"{name} has {size} bytes instead of {record.size}"
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{name} is missing"
    return "" if digest == record.sha256 else f"{name} has changed since it was written (SHA-256 differs)"


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint so that nobody resumes from it, and return its new path. Raises OSError."""
    for number in range(1000):
        aside = checkpoint.with_name(f"damaged-{checkpoint.name}" + (f".{number}" if number else ""))
        if not aside.exists():
            checkpoint.rename(aside)
            fsync_directory(checkpoint.parent)
            return aside
    raise FileExistsError(f"{checkpoint} was set aside a thousand times; remove its damaged-* copies")


def is_sound(checkpoint: Path) -> bool:
    """Whether all of it is there in the right size. Reads no file but the manifest, so a flipped byte is not seen."""
    try:
        return not verify(checkpoint, mine=lambda _: False) and all(
            (checkpoint / name).stat().st_size == record.size
            for name, record in read_manifest(checkpoint).files.items()
        )
    except (OSError, ValueError):
        return False


def keep(checkpoint: Path, why: str) -> None:
    """Have nobody prune it. Raises OSError."""
    write_atomic(checkpoint / KEEP, why.strip() + "\n")


def let_go(checkpoints: Iterable[Checkpoint], why: str, *, newest: int) -> None:
    """Of those that are kept for a reason that begins with `why`, go on keeping the newest so many. Raises OSError."""
    kept = [checkpoint for checkpoint in sorted(checkpoints, reverse=True) if _why_kept(checkpoint).startswith(why)]
    for checkpoint in kept[newest:]:
        (checkpoint.path / KEEP).unlink(missing_ok=True)


def _why_kept(checkpoint: Checkpoint) -> str:
    try:
        return (checkpoint.path / KEEP).read_text(errors="replace")
    except OSError:
        return ""


def find_superfluous(
    checkpoints: Iterable[Checkpoint],
    *,
    keep_last: int,
    keep_every: int = 0,
    is_good: Callable[[Path], bool] = is_sound,
) -> list[Checkpoint]:
    """Which of the checkpoints `found` may go, oldest first.

    What stays: the newest `keep_last` (0 keeps all), each whose step is a multiple of `keep_every`, those that hold
    KEEP, and always the newest two that are good.
    """
    if not keep_last:
        return []
    newest_first = sorted(checkpoints, reverse=True)
    older = newest_first[max(2, keep_last) :]
    missing = 2
    for checkpoint in newest_first:
        if not missing or not older:
            break
        if is_good(checkpoint.path):
            missing -= 1
            older = [other for other in older if other != checkpoint]
    # Of too few that are good none is known to be worth less than another.
    return [] if missing else sorted(checkpoint for checkpoint in older if not _is_kept(checkpoint, keep_every))


def _is_kept(checkpoint: Checkpoint, keep_every: int) -> bool:
    try:
        return (checkpoint.path / KEEP).exists() or bool(keep_every and checkpoint.step % keep_every == 0)
    except OSError:  # nobody can say that it is not
        return True


def remove(checkpoint: Path) -> None:
    """Take a checkpoint away. Its name goes first, in one step: cut off half-way, what is left is none, and `sweep`
    takes it. Raises OSError."""
    gone = checkpoint.with_name(f"{_REMOVING}{checkpoint.name}")
    if gone.exists():
        shutil.rmtree(gone)
    checkpoint.rename(gone)
    fsync_directory(checkpoint.parent)  # else the name might come back after a power failure, on half of the files
    shutil.rmtree(gone)


def sweep(directory: Path) -> None:
    """Finish removals in `directory` that were cut off. Raises OSError, of the last that stays."""
    failure: OSError | None = None
    for left in directory.glob(f"{_REMOVING}*"):
        try:
            shutil.rmtree(left)
        except FileNotFoundError:  # somebody else is at it
            continue
        except OSError as error:
            failure = error
    if failure:
        raise failure
