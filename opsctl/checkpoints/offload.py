"""Copy checkpoints to another file system or by a program, verify the copies, and remove superfluous originals."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from opsctl.base.errors import InputError, OpsctlError
from opsctl.base.ports import Clock, Runner, TimedOut
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
from opsctl.state.files import fsync_directory, make_directories, open_for_writing, open_regular, read_bounded
from opsctl.trainer import manifest
from opsctl.trainer.manifest import Checkpoint

_CHUNK = 8 << 20
_PLACEHOLDERS = ("source", "files", "name", "train")


class CopyFailed(OpsctlError):
    """The copy failed, or differs from the original."""


ReportBytes = Callable[[int], None]
"""Receives the number of bytes copied since the last call."""


class Destination(Protocol):
    """The target of copies."""

    @property
    def label(self) -> str:
        """The name of the destination in the record of offloaded checkpoints."""

    def copy(self, checkpoint: Path, report_bytes: ReportBytes) -> None:
        """Make a complete and verified copy. An interrupted copy resumes. Raises Damaged, CopyFailed, OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A directory of another file system. A copy gets its final name after its files are read back and verified."""

    path: Path

    @property
    def label(self) -> str:
        return str(self.path.absolute())

    def copy(self, checkpoint: Path, report_bytes: ReportBytes) -> None:
        final, part = self.path / checkpoint.name, self.path / f".offloading-{checkpoint.name}"
        if not final.exists():
            make_directories(part)
            contents = _contents(checkpoint)
            for name, (size, digest) in contents.items():
                _copy_file(checkpoint / name, part / name, digest)
                report_bytes(size)
            self._check_copy(part)
            for directory in {part, *((part / name).parent for name in contents)}:
                fsync_directory(directory)  # the original may be removed afterwards
            part.rename(final)
            fsync_directory(self.path)
        elif _read_mark(final) != _read_mark(checkpoint):
            raise CopyFailed(
                f"{final} is another checkpoint of the same step",
                hint="move that directory away, or copy to another",
            )
        else:
            self._check_copy(final)

    def _check_copy(self, copied: Path) -> None:
        if damage := problems(copied):
            raise CopyFailed(
                f"the copy {copied} differs from the original: {'; '.join(damage)}",
                hint=f"remove {copied} and try again",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A destination of rclone, rsync and similar programs, by two command lines that run without a shell.

    `push` copies the files listed in {files} from {source}. `sums` prints a line `<SHA-256>  <path>` for every file at
    the destination, as sha256sum and `rclone hashsum sha256` do. COMPLETE is pushed last, after the sums are verified:
    a partial copy never looks complete.
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
            _fill(words, dict.fromkeys(_PLACEHOLDERS, ""))

    @property
    def label(self) -> str:
        return " ".join(self.push)

    def copy(self, checkpoint: Path, report_bytes: ReportBytes) -> None:
        if damage := problems(checkpoint):
            raise Damaged("; ".join(damage))
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
        reported = parse_sums(self._run(self.sums, self._values(checkpoint, files="")))
        wrong = [name for name, digest in expected.items() if not _is_copied(reported, checkpoint.name, name, digest)]
        if wrong:
            raise CopyFailed(
                f"{checkpoint.name}: {len(wrong)} of {len(expected)} copied files are missing or differ: {wrong[0]}",
                hint=" ".join(_fill(self.sums, self._values(checkpoint, files=""))),
            )

    def _values(self, checkpoint: Path, *, files: str) -> dict[str, str]:
        return {"source": str(checkpoint), "name": checkpoint.name, "train": self.train, "files": files}

    def _run(self, words: tuple[str, ...], values: Mapping[str, str]) -> str:
        argv = _fill(words, values)
        try:
            completed = self.runner.run(argv, timeout=self.timeout)
        except TimedOut as error:
            raise CopyFailed(str(error), hint="repeat the command with a longer --timeout; the copy resumes") from error
        if completed.code:
            lines = (completed.err or completed.out).strip().splitlines()[-3:]
            raise CopyFailed(f"{argv[0]} ended with {completed.code}: {' / '.join(lines)}", hint=" ".join(argv))
        return completed.out


def _fill(words: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Replace the placeholders of a command line. Raises InputError for an unknown placeholder."""
    filled = []
    for word in words:
        try:
            filled.append(word.format_map(values))
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            known = ", ".join(f"{{{name}}}" for name in _PLACEHOLDERS)
            raise InputError(f"{word!r}: {error} is not a placeholder; there are {known}") from error
    return tuple(filled)


def parse_sums(text: str) -> dict[str, str]:
    """Parse the output of sha256sum. Return digests by path."""
    rows = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return {row[1].lstrip("*").removeprefix("./"): row[0].lower() for row in rows if len(row) == 2}


def _is_copied(reported: Mapping[str, str], checkpoint: str, name: str, digest: str) -> bool:
    """Return whether the file has this digest. Paths are relative to the checkpoint or to a directory above."""
    if name in reported:
        return reported[name] == digest
    suffix = f"{checkpoint}/{name}"
    return any(path.endswith(suffix) and reported_digest == digest for path, reported_digest in reported.items())


def _contents(checkpoint: Path) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 of every file to be copied, COMPLETE last. Raises Damaged, OSError."""
    if damage := manifest.verify(checkpoint, mine=lambda _: False):
        raise Damaged("; ".join(damage))
    records = manifest.read_manifest(checkpoint).files
    files = {name: (record.size, record.sha256) for name, record in sorted(records.items())}
    for name in (manifest.KEEP, manifest.MANIFEST, manifest.COMPLETE):
        if (checkpoint / name).exists():
            content = read_bounded(checkpoint / name, manifest.MAX_MANIFEST_BYTES)
            files[name] = len(content), hashlib.sha256(content).hexdigest()
    return files


def _copy_file(source: Path, target: Path, digest: str) -> None:
    """Copy a file durably, unless `target` has this digest. Raises Damaged, OSError."""
    if target.exists() and target.stat().st_size == source.stat().st_size and _digest(target) == digest:
        return
    make_directories(target.parent)
    hashing = hashlib.sha256()
    # A file of a checkpoint may be a link, as in manifest.verify; a file of the copy is none.
    with (
        os.fdopen(open_regular(source, follow=True), "rb") as reading,
        os.fdopen(open_for_writing(target), "wb") as writing,
    ):
        while chunk := reading.read(_CHUNK):
            hashing.update(chunk)
            writing.write(chunk)
        writing.flush()
        os.fsync(writing.fileno())
        os.posix_fadvise(writing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # verification must read the disk
    if hashing.hexdigest() != digest:
        target.unlink()
        raise Damaged(f"{source.parent.name}: {source.name} has changed since it was written (SHA-256 differs)")


def _read_mark(checkpoint: Path) -> bytes:
    return read_bounded(checkpoint / manifest.COMPLETE, manifest.MAX_MARK_BYTES)


def _digest(path: Path) -> str:
    with os.fdopen(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPlan:
    """The copies of an offload, and the removals that follow successful copies."""

    copies: tuple[Checkpoint, ...]
    removals: tuple[Checkpoint, ...]


def plan(directory: Path, to: str, *, keep_local: int) -> OffloadPlan:
    """Plan to copy all checkpoints that `to` does not have, and to keep the newest `keep_local`, at least two.

    Raises RunDirError.
    """
    checkpoints = find_checkpoints(directory)
    return OffloadPlan(
        copies=tuple(checkpoint for checkpoint in checkpoints if to not in offloaded_to(checkpoint.path)),
        removals=tuple(manifest.find_superfluous(checkpoints, keep_last=keep_local)),
    )


def size(checkpoint: Checkpoint) -> int:
    """Return the bytes of the files; 0 without a valid manifest."""
    try:
        return size_of(manifest.read_manifest(checkpoint.path))
    except (OSError, ValueError):
        return 0


def offload(checkpoint: Checkpoint, to: Destination, clock: Clock, report_bytes: ReportBytes) -> None:
    """Make and verify one copy, and record it. Raises Damaged, CopyFailed."""
    try:
        to.copy(checkpoint.path, report_bytes)
        note_offloaded(checkpoint.path, to=to.label, at=clock.now().isoformat(timespec="seconds"))
    except OSError as error:
        raise CopyFailed(f"{checkpoint.path.name}: {cause(error, checkpoint.path)}") from error


def removable(planned: OffloadPlan, to: str) -> list[Checkpoint]:
    """Return the planned removals that are safe: copied, and not among the newest two valid checkpoints.

    Raises RunDirError.
    """
    copied = [checkpoint for checkpoint in planned.removals if to in offloaded_to(checkpoint.path)]
    if not copied:
        return []
    checkpoints = find_checkpoints(copied[0].path.parent)
    superfluous = manifest.find_superfluous(checkpoints, keep_last=2, is_good=lambda path: not describe_doubt(path))
    return [checkpoint for checkpoint in copied if checkpoint in set(superfluous)]
