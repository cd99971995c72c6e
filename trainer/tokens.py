"""Text to tokens: byte by byte, or by a `tokenizer.json` as Hugging Face's tokenizers library reads it."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opsctl.trainer.errors import Refused

END_OF_DOCUMENT = 256
"""Of a byte-level corpus."""
_USUAL_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")

Encode = Callable[[bytes], npt.NDArray[Any]]


def byte_level(text: bytes) -> npt.NDArray[Any]:
    """The bytes of a document, and its end."""
    return np.append(np.frombuffer(text, dtype=np.uint8).astype(np.uint16), np.uint16(END_OF_DOCUMENT))


class Tokenizer:
    """The tokens of a `tokenizer.json`, with one that ends a document. Raises Refused if it cannot be used."""

    def __init__(self, path: Path, *, end: str | None = None) -> None:
        try:
            library = importlib.import_module("tokenizers")
        except ImportError as error:
            raise Refused(f"{path}: the tokenizers library is not there (pip install tokenizers)") from error
        try:
            self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            self._tokenizer = library.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise Refused(f"tokenizer {path} cannot be read: {error}") from error
        self.vocabulary: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        ends = (end,) if end else _USUAL_ENDS
        found = (self._tokenizer.token_to_id(token) for token in ends)
        self.end = next((number for number in found if number is not None), None)
        if self.end is None:
            raise Refused(f"tokenizer {path} has none of {', '.join(ends)}: name what ends a document with --end-token")

    def __call__(self, text: bytes) -> npt.NDArray[Any]:
        """The tokens of a document, and its end; bytes that are not UTF-8 become U+FFFD."""
        ids = self._tokenizer.encode(text.decode(errors="replace"), add_special_tokens=False).ids
        return np.array([*ids, self.end], dtype=np.int32)
