"""Find the checkpoints of any trainer below directories, within bounds. Needs no torch."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from opsctl.checkpoints.completeness import Completeness, judge, read_small
from opsctl.checkpoints.layouts import CheckpointLayout, fit_name, newest_files
from opsctl.state.files import MAX_ENTRIES, find_matches, is_directory, list_entries, list_names
from opsctl.trainer.manifest import list_checkpoints

MAX_LISTED = 20_000
"""Entries listed in all directories together."""
MAX_STATED = 4_000
"""Entries whose times are read."""
MAX_JUDGED = 24
"""Checkpoints whose files are looked at, the newest first."""
MAX_FOUND = 4096
"""Checkpoints of a directory in a list, the newest."""
MAX_DEPTH = 4
"""Levels of directories: some trainers save to NAME/version_0/checkpoints/."""
MAX_STEP_DIGITS = 15
NO_CHECKPOINTS = frozenset(
    {"wandb", "tensorboard", "runs", "mlruns", "logs", "__pycache__", "node_modules", "site-packages", "evidence"}
)
"""Directories that hold no checkpoints, and often thousands of files."""
TEXTS = frozenset((".log", ".out", ".err", ".txt", ".csv", ".tsv", ".jsonl", ".md", ".html"))
"""Endings of files that an option may name, and that hold no checkpoint unless their whole name says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """One checkpoint of any trainer, a directory or a file."""

    path: Path
    step: int | None
    """From its name; None if the name has no step."""
    changed_ns: int
    """Newest modification of the entry and of its direct entries, by the file system's clock."""
    layout: str
    completeness: Completeness
    reason: str

    @property
    def written(self) -> datetime:
        return datetime.fromtimestamp(self.changed_ns / 1e9, UTC)

    @property
    def is_complete(self) -> bool:
        return self.completeness is Completeness.COMPLETE

    @property
    def is_partial(self) -> bool:
        return self.completeness is Completeness.PARTIAL


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointScan:
    """What lies in the checkpoint directories of a run."""

    newest: FoundCheckpoint | None = None
    """The newest checkpoint that is not known to be partial: the next attempt resumes there."""
    partial: tuple[FoundCheckpoint, ...] = ()
    """Newer checkpoints that are not complete."""
    changed_ns: int = 0
    """Newest modification in the directories; 0 if they hold nothing."""
    is_whole: bool = True
    """Whether everything was listed; False beyond the bounds, or if a directory cannot be read."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    path: Path
    step: int | None
    digits: str
    is_directory: bool
    changed_ns: int

    @property
    def order(self) -> tuple[int, int]:
        return (-1 if self.step is None else self.step, self.changed_ns)


@dataclass(slots=True)
class _Walk:
    """A bounded walk through checkpoint directories."""

    candidates: dict[Path, _Candidate] = field(default_factory=dict)
    changed_ns: int = 0
    listed: int = 0
    stated: int = 0
    is_whole: bool = True
    problems: list[str] = field(default_factory=list)


def scan_directories(directories: Iterable[Path]) -> CheckpointScan:
    """Return the newest checkpoints below the directories. Never raises; what cannot be read is a problem."""
    walk = _Walk()
    for directory in dict.fromkeys(directories):
        _walk(walk, directory)
    judged = list(islice(_judge_newest_first(walk), MAX_JUDGED))
    usable = [checkpoint for checkpoint in judged if not checkpoint.is_partial]
    newest = usable[0] if usable else None
    return CheckpointScan(
        newest=newest,
        partial=tuple(judged[: judged.index(newest)] if newest else judged),
        changed_ns=max([walk.changed_ns, *(checkpoint.changed_ns for checkpoint in judged)]),
        is_whole=walk.is_whole,
        problems=tuple(walk.problems),
    )


def list_checkpoints_in(directories: Iterable[Path], limit: int = MAX_FOUND) -> list[FoundCheckpoint]:
    """Return the checkpoints below the directories, the highest step first, those without a step last. Never raises.

    Of a directory at most the newest `limit` are looked at.
    """
    found: list[FoundCheckpoint] = []
    for directory in directories:
        walk = _Walk()
        _walk(walk, directory)
        ordered = sorted(walk.candidates.values(), key=lambda candidate: candidate.order, reverse=True)
        found += map(_judge, ordered[:limit])
    return sorted(found, key=lambda checkpoint: -1 if checkpoint.step is None else checkpoint.step, reverse=True)


def describe_stepless(found: Sequence[FoundCheckpoint], limit: int) -> tuple[str, str]:
    """Return what `list_checkpoints_in` found: `43 found`, and `none recognised as complete: NAME: REASON`.

    Of a usable checkpoint, whose step is unknown to the reader as well, only the name. Empty if nothing was found. Of
    one directory at most `limit` were looked at.
    """
    newest = max(found, key=lambda checkpoint: checkpoint.changed_ns, default=None)
    if newest is None:
        return "", ""
    if usable := [checkpoint for checkpoint in found if not checkpoint.is_partial]:
        return max(usable, key=lambda checkpoint: checkpoint.changed_ns).path.name, ""
    count = f"{len(found)}{' or more' * (len(found) >= limit)} found"
    return count, f"none recognised as complete: {newest.path.name}: {newest.reason}"


def _walk(walk: _Walk, top: Path) -> None:
    """Collect what the names make a checkpoint; go down into other directories."""
    waiting = [(top, 0)]
    while waiting:
        directory, depth = waiting.pop(0)
        try:
            entries = _list(walk, directory)
            walk.changed_ns = max(walk.changed_ns, directory.stat().st_mtime_ns if entries else 0)
        except (FileNotFoundError, NotADirectoryError):
            _add_file(walk, directory)
            continue
        except OSError as error:
            walk.problems.append(f"{directory}: {error.strerror or error}")
            walk.is_whole = False
            continue
        named = _newest_names(directory, entries)
        for entry in entries:
            is_directory = _is_directory(entry)
            if candidate := _candidate(walk, entry, is_directory=is_directory, is_named=entry.name in named):
                walk.candidates[candidate.path] = candidate
            elif is_directory and depth < MAX_DEPTH and entry.name[0] != "." and entry.name not in NO_CHECKPOINTS:
                waiting.append((Path(entry.path), depth + 1))
            elif not is_directory:
                walk.changed_ns = max(walk.changed_ns, _changed_ns(walk, entry))


def _add_file(walk: _Walk, path: Path) -> None:
    """Add the only file of a trainer, such as `--save run.ckpt`."""
    try:
        status = path.stat()
    except OSError:
        return
    if stat.S_ISREG(status.st_mode) and (fit_name(path.name, is_directory=False) or path.suffix not in TEXTS):
        changed_ns = status.st_mtime_ns
        walk.candidates[path] = _Candidate(path=path, step=None, digits="", is_directory=False, changed_ns=changed_ns)


def _list(walk: _Walk, directory: Path) -> list[os.DirEntry[str]]:
    entries = list_entries(directory, max_entries=max(0, MAX_LISTED - walk.listed))
    walk.listed += len(entries)
    if walk.listed >= MAX_LISTED and walk.is_whole:
        walk.is_whole = False
        walk.problems.append(f"{directory}: only the first {MAX_LISTED} entries were read")
    return entries


def _newest_names(directory: Path, entries: list[os.DirEntry[str]]) -> set[str]:
    """Return the names in files such as `latest`: DeepSpeed's tags are free text."""
    present = {entry.name for entry in entries} & newest_files()
    return {text for name in present if (text := read_small(directory / name)) and "/" not in text}


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _candidate(walk: _Walk, entry: os.DirEntry[str], *, is_directory: bool, is_named: bool) -> _Candidate | None:
    if not is_directory and entry.name in newest_files():
        return None
    digits = _step_digits(entry, is_directory=is_directory)
    if digits is None:
        if not (is_named and is_directory):
            return None
        number = re.search(r"\d+(?=\D*$)", entry.name)
        digits = number[0] if number else ""
    return _Candidate(
        path=Path(entry.path),
        step=int(digits) if digits and len(digits) <= MAX_STEP_DIGITS else None,
        digits=digits,
        is_directory=is_directory,
        changed_ns=_changed_ns(walk, entry),
    )


def _step_digits(entry: os.DirEntry[str], *, is_directory: bool) -> str | None:
    """Return the digits of the step in the name of a checkpoint, None for any other entry.

    The files in an entry are looked for only where the name alone does not decide: there may be thousands of entries.
    """
    fits = fit_name(entry.name, is_directory=is_directory)
    fit = next((fit for fit in fits if not fit.layout.needs_evidence), None)
    if fit is None:
        path = Path(entry.path)
        fit = next((fit for fit in fits if _is_known(path, fit.layout)), None)
    return None if fit is None else entry.name[fit.begin : fit.end]


def _is_known(path: Path, layout: CheckpointLayout) -> bool:
    places = [(path, pattern) for pattern in layout.known_by]
    places += [(path.parent, pattern) for pattern in layout.known_beside]
    try:
        return any(next(find_matches(directory, pattern), None) is not None for directory, pattern in places)
    except OSError:
        return False


def _changed_ns(walk: _Walk, entry: os.DirEntry[str]) -> int:
    if walk.stated >= MAX_STATED:
        return 0
    walk.stated += 1
    try:
        status = entry.stat()
    except OSError:
        return 0
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else 0


def _judge_newest_first(walk: _Walk) -> Iterator[FoundCheckpoint]:
    """Yield judged checkpoints, the highest step first, up to the first that is complete."""
    ordered = sorted(walk.candidates.values(), key=lambda candidate: candidate.order, reverse=True)
    for candidate in ordered:
        checkpoint = _judge(candidate)
        yield checkpoint
        if checkpoint.is_complete:
            return


def _judge(candidate: _Candidate) -> FoundCheckpoint:
    layout, step = _layout_of(candidate)
    completeness, reason, changed_ns = Completeness.UNKNOWN, "its layout is unknown", candidate.changed_ns
    try:
        if layout:
            completeness, reason = judge(candidate.path, layout, candidate.digits, is_directory=candidate.is_directory)
        changed_ns = max(candidate.changed_ns, _newest_change_ns(candidate))
    except OSError as error:
        completeness, reason = Completeness.UNKNOWN, error.strerror or str(error)
    return FoundCheckpoint(
        path=candidate.path,
        step=step,
        changed_ns=changed_ns,
        layout=layout.name if layout else "",
        completeness=completeness,
        reason=reason,
    )


def _layout_of(candidate: _Candidate) -> tuple[CheckpointLayout | None, int | None]:
    """Return the layout that the files show, and the step by this layout: not every number in a name is a step."""
    for fit in fit_name(candidate.path.name, is_directory=candidate.is_directory):
        if not fit.layout.needs_evidence or _is_known(candidate.path, fit.layout):
            return fit.layout, candidate.step if fit.end else None
    return None, candidate.step


def _newest_change_ns(candidate: _Candidate) -> int:
    """Return the newest modification of the direct entries of a directory, of at most MAX_STATED."""
    if not candidate.is_directory:
        return 0
    entries = list_entries(candidate.path, max_entries=MAX_STATED)
    return max((entry.stat().st_mtime_ns for entry in entries), default=0)


SKIPPED = (".saving-", "damaged-")
"""Prefixes of unfinished and damaged checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One checkpoint, a directory or a single file."""

    path: Path
    at: datetime
    """Time of the last write, by the file system's clock."""
    step: int | None = None


def find_saves(directory: Path, *, embedded: bool) -> list[Save]:
    """Return the checkpoints below `directory`, the oldest first; for the embedded trainer, the complete ones.

    Only the files of the newest checkpoint are read: there may be hundreds of checkpoints with thousands of files.
    """
    steps: dict[Path, int | None] = (
        {checkpoint.path: checkpoint.step for checkpoint in list_checkpoints(directory)}
        if embedded
        else dict.fromkeys(_entries(directory))
    )
    found = sorted((path.lstat().st_mtime, path) for path in steps)
    *older, (newest, path) = found or [(0.0, directory)]
    times = {path: at for at, path in older} | ({path: _written(path, newest)} if found else {})
    return [Save(path=path, at=datetime.fromtimestamp(at, UTC), step=steps[path]) for path, at in times.items()]


def _entries(directory: Path) -> list[Path]:
    """Return the directories, or else the files: trainers keep small files such as `latest` next to checkpoints."""
    try:
        names = list_names(directory)
    except FileNotFoundError:
        return []
    paths = [directory / name for name in sorted(names) if not name.startswith((".", *SKIPPED))]
    directories = [path for path in paths if is_directory(path)]
    return directories or paths


def _written(path: Path, at: float) -> float:
    """Return the newest modification of the path and of its direct entries."""
    names = list_names(path) if is_directory(path) else ()
    return max(((path / name).lstat().st_mtime for name in names), default=at)


def size_of(path: Path) -> tuple[int, int]:
    """Return bytes and inodes of a file or a directory tree. Entries that vanish during the walk count 0."""
    if not path.is_dir():
        return path.lstat().st_size, 1
    sizes = [entry.stat(follow_symlinks=False).st_size for entry in _below(path)]
    return sum(sizes), len(sizes) + 1


def _below(path: Path) -> Iterator[os.DirEntry[str]]:
    waiting = [path]
    while waiting:
        try:
            entries = list_entries(waiting.pop(), max_entries=MAX_ENTRIES)
        except FileNotFoundError:
            continue
        yield from entries
        waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
