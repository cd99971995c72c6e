"""Tokenizers: byte level, or a `tokenizer.json` of Hugging Face's tokenizers library."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opsctl.trainer.bounded_files import read_bounded
from opsctl.trainer.errors import Refused, load_library

MAX_CONFIG_BYTES = 4 << 20
_MAX_TOKENIZER_BYTES = 1 << 30
END_OF_DOCUMENT = 256
"""End-of-document token of a byte-level corpus."""
_USUAL_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")

Encode = Callable[[bytes], npt.NDArray[Any]]


def read_tokenizer_config(tokenizer: Path) -> dict[str, Any]:
    """Return special tokens and chat template of the files beside `tokenizer`. Raises OSError, ValueError."""
    config: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = tokenizer.with_name(name)
        loaded = json.loads(read_bounded(path, MAX_CONFIG_BYTES, follow=True)) if path.exists() else {}
        config |= loaded if isinstance(loaded, dict) else {}
    return config


class ByteLevel:
    """The bytes of a text as tokens."""

    name = "bytes"
    end, vocabulary = END_OF_DOCUMENT, END_OF_DOCUMENT + 1

    def __call__(self, text: bytes) -> npt.NDArray[Any]:
        """Return the bytes of a document and the end-of-document token."""
        return np.append(np.frombuffer(text, dtype=np.uint8).astype(np.uint16), np.uint16(self.end))

    def find(self, text: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the tokens of a text without an end; of every token, its first character and the one after it.

        A character of several bytes is the place of each of them.
        """
        begins = np.repeat(np.arange(len(text)), [len(character.encode()) for character in text])
        return np.frombuffer(text.encode(), dtype=np.uint8), begins, begins + 1


class Tokenizer:
    """A `tokenizer.json`, its end-of-document token, and the token `begin` before every document, if there is one.

    Raises Refused if the file or a token is unusable.
    """

    def __init__(self, path: Path, *, end: str | None = None, begin: str | None = None) -> None:
        library = load_library("tokenizers", path)
        try:
            self.name = f"sha256:{hashlib.sha256(read_bounded(path, _MAX_TOKENIZER_BYTES, follow=True)).hexdigest()}"
            self._tokenizer = library.Tokenizer.from_file(str(path))
            self._tokenizer.no_truncation()  # the file may cut and fill texts, as for batches of sentences
            self._tokenizer.no_padding()
            ends = [end] if end else self._likely_ends(path)
        except Exception as error:  # the library raises Exception itself
            raise Refused(f"tokenizer {path} cannot be read: {error}") from error
        self.vocabulary: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        numbers = (self._tokenizer.token_to_id(token) for token in ends)
        found = next((number for number in numbers if number is not None), None)
        if found is None:
            raise Refused(
                f"tokenizer {path} has none of {', '.join(ends)}: specify the end-of-document token with --end-token"
            )
        self.end: int = found
        self._begin = [] if begin is None else [self._tokenizer.token_to_id(begin)]
        if None in self._begin:
            raise Refused(f"tokenizer {path} has no token {begin}, which --begin-token names")

    def _likely_ends(self, path: Path) -> list[str]:
        """Return the usual ends that are special tokens, that of the model's configuration, and the usual ends."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special}
        configured = read_tokenizer_config(path).get("eos_token")
        named = configured.get("content") if isinstance(configured, dict) else configured
        likely = [*(token for token in _USUAL_ENDS if token in special), named, *_USUAL_ENDS]
        return list(dict.fromkeys(token for token in likely if isinstance(token, str)))

    def __call__(self, text: bytes) -> npt.NDArray[Any]:
        """Return the tokens of a document between its first and its last one; invalid UTF-8 becomes U+FFFD."""
        ids = self._tokenizer.encode(text.decode(errors="replace"), add_special_tokens=False).ids
        return np.array([*self._begin, *ids, self.end], dtype=np.int32)

    def find(self, text: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """As ByteLevel. Some tokenizers leave spaces out of a token's place; one of spaces alone then takes the last.

        Special tokens in the text are tokens of their own; none is added.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        places = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return np.array(encoding.ids, dtype=np.int32), np.minimum(places[:, 0], places[:, 1] - 1), places[:, 1]
