"""Verified copies of checkpoints somewhere else, by hand or by a program; complete there, or not there."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from opsctl.checkpoints.catalog import (
    Damaged,
    cause,
    describe_doubt,
    find_checkpoints,
    note_offloaded,
    offloaded_to,
    problems,
    size_of,
)
from opsctl.errors import InputError, OpsctlError
from opsctl.ports import Clock, Runner, TimedOut
from opsctl.state.files import fsync_directory
from opsctl.trainer import manifest
from opsctl.trainer.manifest import Checkpoint

_CHUNK = 8 << 20
_PLACEHOLDERS = ("source", "files", "name", "train")


class CopyFailed(OpsctlError):
    """The copy could not be made, or is not what was to be copied."""


ReportBytes = Callable[[int], None]
"""Hears how many more bytes are done."""


class Destination(Protocol):
    """Where copies go. `copy` returns when a verified copy of the checkpoint is there, complete.

    Called again after it was cut off, it goes on where it was. Raises Damaged, CopyFailed, OSError.
    """

    @property
    def label(self) -> str:
        """How it is remembered."""

    def copy(self, checkpoint: Path, report_bytes: ReportBytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory of another file system. A copy has its name there only when it has been read back and verified."""

    path: Path

    @property
    def label(self) -> str:
        return str(self.path.absolute())

    def copy(self, checkpoint: Path, report_bytes: ReportBytes) -> None:
        final, part = self.path / checkpoint.name, self.path / f".offloading-{checkpoint.name}"
        if not final.exists():
            part.mkdir(parents=True, exist_ok=True)
            contents = _contents(checkpoint)
            for name, (size, digest) in contents.items():
                _copy_file(checkpoint / name, part / name, digest)
                report_bytes(size)
            self._refuse_damaged(part)
            for directory in {part, *((part / name).parent for name in contents)}:
                fsync_directory(directory)  # the original may be removed after this
            part.rename(final)
            fsync_directory(self.path)
        elif (final / manifest.COMPLETE).read_bytes() != (checkpoint / manifest.COMPLETE).read_bytes():
            raise CopyFailed(
                f"{final} is another checkpoint of the same step", hint="move it away, or name another place"
            )
        else:
            self._refuse_damaged(final)

    def _refuse_damaged(self, copied: Path) -> None:
        if found := problems(copied):
            raise CopyFailed(
                f"the copy {copied} is not what was copied: {'; '.join(found)}", hint="remove it and try again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Whatever rclone, rsync and the like reach, by two command lines, word by word and without a shell.

    `push` copies the files that are listed in {files}, from {source}; `sums` prints a line `<SHA-256>  <path>` for each
    file that is there, as sha256sum and `rclone hashsum sha256` do. COMPLETE is pushed last, after the sums have been
    found right, so that who reads there never sees half a checkpoint as one.
    """

    push: tuple[str, ...]
    sums: tuple[str, ...]
    train: str
    runner: Runner
    timeout: float

    def __post_init__(self) -> None:
        for name, words, needed in (("--push", self.push, ("{source}", "{files}")), ("--sums", self.sums, ())):
            missing = [placeholder for placeholder in needed if not any(placeholder in word for word in words)]
            if not words or missing:
                raise InputError(f"{name} needs {' and '.join(missing) or 'a command'}")
            _filled(words, dict.fromkeys(_PLACEHOLDERS, ""))

    @property
    def label(self) -> str:
        return " ".join(self.push)

    def copy(self, checkpoint: Path, report_bytes: ReportBytes) -> None:
        if found := problems(checkpoint):
            raise Damaged("; ".join(found))
        contents = _contents(checkpoint)
        *before, last = contents
        self._push(checkpoint, before)
        self._check(checkpoint, {name: contents[name][1] for name in before})
        self._push(checkpoint, [last])
        report_bytes(sum(size for size, _ in contents.values()))

    def _push(self, checkpoint: Path, names: Iterable[str]) -> None:
        with tempfile.NamedTemporaryFile("w", prefix="opsctl-offload-") as files:
            files.writelines(f"{name}\n" for name in names)
            files.flush()
            self._run(self.push, self._values(checkpoint, files=files.name))

    def _check(self, checkpoint: Path, expected: Mapping[str, str]) -> None:
        there = parse_sums(self._run(self.sums, self._values(checkpoint, files="")))
        wrong = [name for name, digest in expected.items() if not _has(there, checkpoint.name, name, digest)]
        if wrong:
            raise CopyFailed(
                f"{checkpoint.name}: {len(wrong)} of {len(expected)} files are not there as they are here: {wrong[0]}",
                hint=" ".join(_filled(self.sums, self._values(checkpoint, files=""))),
            )

    def _values(self, checkpoint: Path, *, files: str) -> dict[str, str]:
        return {"source": str(checkpoint), "name": checkpoint.name, "train": self.train, "files": files}

    def _run(self, words: tuple[str, ...], values: Mapping[str, str]) -> str:
        argv = _filled(words, values)
        try:
            done = self.runner.run(argv, timeout=self.timeout)
        except TimedOut as error:
            raise CopyFailed(str(error), hint="--timeout HOURS gives it more; it goes on where it was") from error
        if done.code:
            lines = (done.err or done.out).strip().splitlines()[-3:]
            raise CopyFailed(f"{argv[0]} ended with {done.code}: {' / '.join(lines)}", hint=" ".join(argv))
        return done.out


def _filled(words: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    filled = []
    for word in words:
        try:
            filled.append(word.format_map(values))
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            known = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
            raise InputError(f"{word!r}: {error} is not a placeholder; there are {known}") from error
    return tuple(filled)


def parse_sums(text: str) -> dict[str, str]:
    """Digest by path, of lines as sha256sum writes them."""
    rows = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return {row[1].lstrip("*").removeprefix("./"): row[0].lower() for row in rows if len(row) == 2}


def _has(there: Mapping[str, str], checkpoint: str, name: str, digest: str) -> bool:
    """Paths may be given from the checkpoint's directory on, or from further up."""
    if name in there:
        return there[name] == digest
    return any(path.endswith(f"{checkpoint}/{name}") and found == digest for path, found in there.items())


def _contents(checkpoint: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file to be copied, COMPLETE last. Raises Damaged, OSError."""
    if found := manifest.verify(checkpoint, mine=lambda _: False):
        raise Damaged("; ".join(found))
    held = manifest.read_manifest(checkpoint)
    files = {name: (record.size, record.sha256) for name, record in sorted(held.files.items())}
    for name in (manifest.KEEP, manifest.MANIFEST, manifest.COMPLETE):
        if (checkpoint / name).exists():
            content = (checkpoint / name).read_bytes()
            files[name] = len(content), hashlib.sha256(content).hexdigest()
    return files


def _copy_file(source: Path, target: Path, digest: str) -> None:
    """Copy durably, unless it is there already. Raises Damaged, OSError."""
    if target.exists() and target.stat().st_size == source.stat().st_size and _digest(target) == digest:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    hashing = hashlib.sha256()
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(_CHUNK):
            hashing.update(chunk)
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())
        os.posix_fadvise(writing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # what is verified is what the disk has
    if hashing.hexdigest() != digest:
        target.unlink()
        raise Damaged(f"{source.parent.name}: {source.name} has changed since it was written (SHA-256 differs)")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPlan:
    """What an offload does: copies, then removals of what is elsewhere, if those succeed."""

    copies: tuple[Checkpoint, ...]
    removals: tuple[Checkpoint, ...]


def plan(directory: Path, to: str, *, keep_local: int) -> OffloadPlan:
    """Copy whatever is not yet `to`; of what is then there keep the newest `keep_local` here, at least two. Raises
    RunDirError."""
    here = find_checkpoints(directory)
    return OffloadPlan(
        copies=tuple(checkpoint for checkpoint in here if to not in offloaded_to(checkpoint.path)),
        removals=tuple(manifest.find_superfluous(here, keep_last=keep_local)),
    )


def size(checkpoint: Checkpoint) -> int:
    """Bytes of its files; 0 if its manifest cannot be understood."""
    try:
        return size_of(manifest.read_manifest(checkpoint.path))
    except (OSError, ValueError):
        return 0


def offload(checkpoint: Checkpoint, to: Destination, clock: Clock, report_bytes: ReportBytes) -> None:
    """Make and verify one copy, and remember it. Raises Damaged, CopyFailed."""
    try:
        to.copy(checkpoint.path, report_bytes)
        note_offloaded(checkpoint.path, to=to.label, at=clock.now().isoformat(timespec="seconds"))
    except OSError as error:
        raise CopyFailed(f"{checkpoint.path.name}: {cause(error, checkpoint.path)}") from error


def removable(planned: OffloadPlan, to: str) -> list[Checkpoint]:
    """Which of the planned removals may be done: copied, and not one of the newest two here that verify. Raises
    RunDirError."""
    gone = [removal for removal in planned.removals if to in offloaded_to(removal.path)]
    if not gone:
        return []
    here = find_checkpoints(gone[0].path.parent)
    spare = set(manifest.find_superfluous(here, keep_last=2, is_good=lambda path: not describe_doubt(path)))
    return [checkpoint for checkpoint in gone if checkpoint in spare]
