"""A corpus in Megatron's indexed format, from the header and the last entry of its index."""

import os
import struct
from pathlib import Path
from typing import Any

from opsctl.preflight.facts import CorpusFacts
from opsctl.state.files import MAX_RECORD_BYTES, MAX_STATE_BYTES, open_regular, parse_json, read_bounded

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<QBQQ")
"""Version, type of a token, sequences, entries in the list of documents."""
_WIDTHS = {1: (1,), 2: (1,), 3: (2,), 4: (4,), 5: (8,), 6: (2,), 7: (4,), 8: (2, 8)}
"""Bytes per token, by the type code in the index (trainer.indexed)."""


def read(prefix: Path, name: str) -> CorpusFacts:
    """Read the corpus at `prefix`, which the user calls `name`. Never raises."""
    data, index, learnt = Path(f"{prefix}.bin"), Path(f"{prefix}.idx"), Path(f"{prefix}.learnt")
    description = _read_description(Path(f"{prefix}.json"))
    needed = (data, index, learnt) if description.get("packed") else (data, index)
    try:
        missing = tuple(path.name for path in needed if not path.is_file())
        if missing:
            return CorpusFacts(prefix=name, missing=missing)
        tokens, width = _tokens(data, index)
        if learnt in needed and (size := learnt.stat().st_size) != tokens:
            raise ValueError(f"{learnt.name} has {size} bytes, and should have {tokens}, one for each token")
    except (OSError, struct.error, ValueError) as error:
        return CorpusFacts(prefix=name, problem=str(error))
    return CorpusFacts(prefix=name, tokens=tokens, width=width, **description)


def _tokens(data: Path, index: Path) -> tuple[int, int]:
    """Return the number of tokens, and bytes per token. Raises ValueError for invalid files."""
    size, index_size = data.stat().st_size, index.stat().st_size
    with os.fdopen(open_regular(index, follow=True), "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{index.name} is not an index in Megatron's format")
        version, code, sequences, documents = _HEADER.unpack(file.read(_HEADER.size))
        start = len(_MAGIC) + _HEADER.size
        if version != 1 or code not in _WIDTHS:
            raise ValueError(f"{index.name}: version {version} and token type {code} are not known")
        if index_size != (expected := start + 12 * sequences + 8 * documents):
            raise ValueError(f"{index.name} has {index_size} bytes, and should have {expected}: the file is truncated")
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


def _read_description(path: Path) -> dict[str, Any]:
    """Return vocabulary size, tokenizer and packing from the file that trainer.prepare wrote."""
    try:
        fields = parse_json(read_bounded(path, MAX_RECORD_BYTES, follow=True))
        vocabulary, packed, tokenizer = fields.get("vocabulary"), fields.get("sequence"), fields.get("tokenizer", "")
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return {
        "vocabulary": vocabulary if isinstance(vocabulary, int) else None,
        "packed": packed if isinstance(packed, int) else None,
        "tokenizer": str(tokenizer),
    }


def tokenizer_size(path: Path) -> int | None:
    """Return the size of a tokenizer (highest id plus one) from `tokenizer.json` or its directory; None if invalid."""
    try:
        file = path / "tokenizer.json" if path.is_dir() else path
        fields = parse_json(read_bounded(file, MAX_STATE_BYTES, follow=True))
        vocabulary = fields["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
        return 1 + int(max([*ids, *(token["id"] for token in fields.get("added_tokens", ()))]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
