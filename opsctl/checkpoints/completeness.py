"""Decide whether a checkpoint of any trainer is complete: from its files, never from its contents. Needs no torch."""

import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path

from opsctl.checkpoints.layouts import CheckpointLayout, fill_pattern
from opsctl.state.files import find_matches, list_entries, open_regular, read_bounded

MAX_ENTRIES = 20_000
"""Files of one checkpoint that are listed. With more, the completeness of its shards is unknown."""
MAX_INDEX_BYTES = 16 << 20
MAX_INDEX_OBJECTS = 1000
"""An index holds the weights in one object. Millions of empty objects would take a gigabyte of memory."""
MAX_SMALL_FILE_BYTES = 4096
ZIP_END = b"PK\x05\x06"
ZIP_START = b"PK\x03\x04"
ZIP_END_BYTES = 22 + 1024
"""The end record of a ZIP archive, with a short comment."""
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
"""The longest header that the library accepts. A file that names a longer one is of another kind."""
MAX_READ_HEADER_BYTES = 4 << 20
"""The longest header that is read here."""

WEIGHT_ENDINGS = (".safetensors", ".distcp")
ARCHIVE_ENDINGS = (*WEIGHT_ENDINGS, ".pt", ".pth", ".ckpt", ".bin")
MAX_ARCHIVES = 16
"""Archives in a directory whose ends are looked at."""

_SHARD = re.compile(r"(.+)-(\d{1,6})-of-(\d{1,6})(\.\w+)")


class Completeness(StrEnum):
    COMPLETE = "complete"
    PARTIAL = "partial"
    UNKNOWN = "unknown"


def judge(path: Path, layout: CheckpointLayout, step_digits: str, *, is_directory: bool) -> tuple[Completeness, str]:
    """Return whether the checkpoint is complete, and the reason. Raises OSError if the checkpoint cannot be read."""
    if layout.partial:
        return Completeness.PARTIAL, "its name says that it is unfinished"
    if reason := _missing_or_forbidden(path, layout, step_digits) or _behind_newest(path, layout, step_digits):
        return Completeness.PARTIAL, reason
    if is_directory:
        return _judge_directory(path, layout)
    return _judge_file(path) if layout.evidence == "archive" else (Completeness.UNKNOWN, "nothing shows its end")


def _missing_or_forbidden(path: Path, layout: CheckpointLayout, step_digits: str) -> str:
    def beside(patterns: Iterable[str]) -> list[tuple[Path, str]]:
        return [(path.parent, fill_pattern(pattern, path.name, step_digits)) for pattern in patterns]

    for directory, pattern in [*((path, needed) for needed in layout.needs), *beside(layout.needs_beside)]:
        if not _has_file(directory, pattern):
            return f"{pattern} is missing or empty"
    forbidden = [*((path, pattern) for pattern in layout.forbids), *beside(layout.forbids_beside)]
    return next((f"{pattern} exists" for directory, pattern in forbidden if (directory / pattern).exists()), "")


def _has_file(directory: Path, pattern: str) -> bool:
    """Whether a file that is not empty, or a directory, matches one of the glob patterns with `|` between them."""
    return any(_matches_one(directory, alternative) for alternative in pattern.split("|"))


def _matches_one(directory: Path, pattern: str) -> bool:
    if "*" not in pattern:
        return _is_filled(directory / pattern)
    return any(_is_filled(path) for path in islice(find_matches(directory, pattern), 64))


def _is_filled(path: Path) -> bool:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISDIR(status.st_mode) or status.st_size > 0


def _behind_newest(path: Path, layout: CheckpointLayout, step_digits: str) -> str:
    """Return why the file that names the newest checkpoint speaks against this checkpoint; empty if it does not."""
    if layout.newest is None:
        return ""
    text = read_small(path.parent / layout.newest.file)
    if text is None:
        return f"{layout.newest.file} is missing"
    if text in ("", path.name):  # trainers empty the file before they write it, after the checkpoint
        return ""
    number = re.search(r"\d+(?=\D*$)", text)
    if number is None or not step_digits:
        return "" if text == "release" else f"{layout.newest.file} names {text!r:.80}"
    return "" if int(number[0]) >= int(step_digits) else f"{layout.newest.file} names the earlier {text!r:.80}"


def read_small(path: Path) -> str | None:
    """Return the text of a small regular file, stripped; None if there is no such file or it is too large."""
    try:
        return read_bounded(path, MAX_SMALL_FILE_BYTES).decode(errors="replace").strip()
    except OSError:
        return None


def _judge_directory(path: Path, layout: CheckpointLayout) -> tuple[Completeness, str]:
    names = _list_names(path)
    if names is None:
        return Completeness.UNKNOWN, f"more than {MAX_ENTRIES} files"
    if any(name.endswith(".distcp") for name in names) and ".metadata" not in names:
        return Completeness.PARTIAL, ".metadata is missing"
    if missing := _missing_shard(path, names) or _missing_rank(names, layout.ranks):
        return Completeness.PARTIAL, f"{missing} is missing"
    if damage := _find_damage(path, names):
        return Completeness.PARTIAL, damage
    if layout.evidence == "none" or not layout.needs:
        return _judge_unknown_directory(names)
    return Completeness.COMPLETE, "every file of its layout exists"


def _judge_unknown_directory(names: set[str]) -> tuple[Completeness, str]:
    """Judge a directory of unknown layout, without a sign of damage."""
    if ".metadata" in names:
        return Completeness.COMPLETE, ".metadata exists"
    if not names:
        return Completeness.PARTIAL, "the directory is empty"
    return Completeness.UNKNOWN, "its layout is unknown"


def _find_damage(path: Path, names: set[str]) -> str:
    """Return which of the first archives is empty or cut off, weights first; empty if all are whole.

    An empty *.distcp is no damage: the rank had nothing to save.
    """
    archives = [name for name in names if name.endswith(ARCHIVE_ENDINGS)]
    for name in sorted(archives, key=lambda name: (not name.endswith(WEIGHT_ENDINGS), name))[:MAX_ARCHIVES]:
        with contextlib.suppress(OSError):  # such as a link to a directory
            if name.endswith(".distcp") and not _is_filled(path / name):
                continue
            completeness, reason = _judge_file(path / name)
            if completeness is Completeness.PARTIAL:
                return f"{name}: {reason}"
    return ""


def _list_names(path: Path) -> set[str] | None:
    """Return the names of the files; None if there are too many."""
    names = {entry.name for entry in list_entries(path, max_entries=MAX_ENTRIES)}
    return names if len(names) < MAX_ENTRIES else None


def _missing_shard(path: Path, names: set[str]) -> str:
    """Return the name of a missing shard, empty if none is known to be missing."""
    matches = filter(None, map(_SHARD.fullmatch, names))
    series = {(match[1], len(match[2]), match[3], match[4]) for match in matches}
    for base, digits, count, ending in series:
        # Some trainers count the shards from 0.
        first = 0 if f"{base}-{0:0{digits}d}-of-{count}{ending}" in names else 1
        numbers = range(first, first + min(int(count), MAX_ENTRIES))
        expected = (f"{base}-{n:0{digits}d}-of-{count}{ending}" for n in numbers)
        if missing := next((shard for shard in expected if shard not in names), ""):
            return missing
    for index in names:
        shards = _indexed_shards(path / index) if index.endswith((".safetensors.index.json", ".bin.index.json")) else ()
        if missing := next((shard for shard in shards if shard not in names), ""):
            return missing
    return ""


def _indexed_shards(index: Path) -> Iterable[str]:
    try:
        data = read_bounded(index, MAX_INDEX_BYTES)
        if data.count(b"{") + data.count(b"[") > MAX_INDEX_OBJECTS:
            return ()
        shards = json.loads(data)["weight_map"].values()
        return sorted({shard for shard in shards if isinstance(shard, str)})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()


def _missing_rank(names: set[str], patterns: Iterable[re.Pattern[str]]) -> str:
    """Return a description of a missing file of a rank, empty if the ranks have no gap."""
    for pattern in patterns:
        ranks = {tuple(map(int, match.groups())) for name in names if (match := pattern.fullmatch(name))}
        if not ranks:
            continue
        counts = [max(numbers) + 1 for numbers in zip(*ranks, strict=True)]
        if len(ranks) < math.prod(counts):
            gap = next(place for place in _iterate_places(counts) if place not in ranks)
            return f"the file of rank {', '.join(map(str, gap))}"
    return ""


def _iterate_places(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield what itertools.product of the ranges would, which keeps all numbers: one name may count to 10**100."""
    if not counts:
        yield ()
        return
    number = 0
    while number < counts[0]:  # range() of a larger number than a machine word raises OverflowError
        for place in _iterate_places(counts[1:]):
            yield (number, *place)
        number += 1


def _judge_file(path: Path) -> tuple[Completeness, str]:
    """Judge one file by its end: a ZIP archive of torch.save, or safetensors."""
    # A link may lead here: Lightning's last.ckpt is one. Nothing but the verdict is told of the file.
    with os.fdopen(open_regular(path, follow=True), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if size == 0:
            return Completeness.PARTIAL, "the file is empty"
        if path.suffix == ".safetensors":
            return _judge_safetensors(file.read, head, size)
        if not head.startswith(ZIP_START):
            return Completeness.UNKNOWN, "nothing in the file shows its end"
        file.seek(max(0, size - ZIP_END_BYTES))
        is_whole = ZIP_END in file.read(ZIP_END_BYTES)
    return (Completeness.COMPLETE, "the archive has its end") if is_whole else (Completeness.PARTIAL, "cut off")


def _judge_safetensors(read: object, head: bytes, size: int) -> tuple[Completeness, str]:
    """Compare the size of the file with the largest offset in its header."""
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > MAX_SAFETENSORS_HEADER_BYTES:
        return Completeness.UNKNOWN, "not safetensors"
    if not 0 < length < size:
        return Completeness.PARTIAL, "cut off"
    if length > MAX_READ_HEADER_BYTES:
        return Completeness.UNKNOWN, "its header is too long"
    try:
        header = json.loads(read(length))  # type: ignore[operator]  # the read of an open file
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        is_whole = size >= 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return Completeness.UNKNOWN, "its header cannot be read"
    return (Completeness.COMPLETE, "as long as its header says") if is_whole else (Completeness.PARTIAL, "cut off")
