"""A corpus in Megatron's indexed format, by its header and its last entry: nothing large is read."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from opsctl.preflight.facts import CorpusFacts

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<QBQQ")
"""Version, type of a token, sequences, entries in the list of documents."""
_WIDTHS = {1: (1,), 2: (1,), 3: (2,), 4: (4,), 5: (8,), 6: (2,), 7: (4,), 8: (2, 8)}
"""Bytes of a token, by what the index calls its type (trainer.indexed)."""


def read(prefix: Path, named: str) -> CorpusFacts:
    """What lies at `prefix`, which the user calls `named`. Never raises."""
    data, index = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    try:
        missing = tuple(path.name for path in (data, index) if not path.is_file())
        if missing:
            return CorpusFacts(prefix=named, missing=missing)
        tokens, width = _tokens(data, index)
    except (OSError, struct.error, ValueError) as error:
        return CorpusFacts(prefix=named, problem=str(error))
    vocabulary, tokenizer = _about(Path(f"{prefix}.json"))
    return CorpusFacts(prefix=named, tokens=tokens, width=width, vocabulary=vocabulary, tokenizer=tokenizer)


def _tokens(data: Path, index: Path) -> tuple[int, int]:
    """Tokens, and bytes of each."""
    size, index_size = data.stat().st_size, index.stat().st_size
    with index.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{index.name} is not an index in Megatron's format")
        version, code, sequences, documents = _HEADER.unpack(file.read(_HEADER.size))
        start = len(_MAGIC) + _HEADER.size
        if version != 1 or code not in _WIDTHS:
            raise ValueError(f"{index.name}: version {version} and token type {code} are not known")
        if index_size != (expected := start + 12 * sequences + 8 * documents):
            raise ValueError(f"{index.name} has {index_size} bytes, and should have {expected}: it was cut short")
        if not sequences:
            return 0, _WIDTHS[code][0]
        file.seek(start + 4 * (sequences - 1))
        (length,) = struct.unpack("<i", file.read(4))
        file.seek(start + 12 * sequences - 8)
        (offset,) = struct.unpack("<q", file.read(8))
    for width in _WIDTHS[code]:
        if size == offset + length * width:
            return size // width, width
    raise ValueError(f"{data.name} has {size} bytes, but its index records {offset + length * _WIDTHS[code][0]}")


def _about(path: Path) -> tuple[int | None, str]:
    """What trainer.prepare wrote beside it."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        vocabulary, tokenizer = given.get("vocabulary"), given.get("tokenizer", "")
    except (OSError, ValueError, AttributeError):
        return None, ""
    return (vocabulary if isinstance(vocabulary, int) else None), str(tokenizer)


def tokenizer_size(path: Path) -> int | None:
    """Tokens that a `tokenizer.json`, or the one in a directory, knows: one more than its highest id."""
    try:
        file = path / "tokenizer.json" if path.is_dir() else path
        given = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = given["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        return 1 + int(max([*ids, *(each["id"] for each in given.get("added_tokens", ()))]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
