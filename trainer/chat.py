"""Conversations: the tokens of each, which of them the model shall learn to write, and their packing into sequences.

A conversation is an object with `messages`, a list of `{"role": …, "content": …}`, or with `prompt` and `completion`,
both texts or both lists of messages. The chat template of the tokenizer writes messages as text. The model learns the
messages of the assistant, or the completion, with the token that ends them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opsctl.trainer.bounded_files import read_bounded
from opsctl.trainer.chat_template import MARKS, ChatTemplate, TemplateFailed
from opsctl.trainer.errors import Refused
from opsctl.trainer.tokens import MAX_CONFIG_BYTES, ByteLevel, Tokenizer, read_tokenizer_config

TOKENS, LEARNT = 0, 1
"""Rows of an encoded conversation: the tokens, and 1 for those that the model learns."""
_OPEN_ROWS = 256
"""Sequences that are packed at a time: more leave less space unused, and take more memory."""
_KINDS = '"messages", or "prompt" and "completion"'


def find_template(tokenizer: Path | None, template: Path | None) -> ChatTemplate | None:
    """Return the template in the file `template`, else that beside `tokenizer`; None if there is none.

    Raises OSError. Raises Refused if a file is invalid.
    """
    try:
        config: dict[str, Any] = {}
        if tokenizer:
            config = read_tokenizer_config(tokenizer)
            own_file = tokenizer.with_name("chat_template.jinja")
            template = template or (own_file if own_file.exists() else None)
        text = read_bounded(template, MAX_CONFIG_BYTES, follow=True).decode() if template else ""
        source = text if template else _default(config.get("chat_template"))
        special_tokens = {key: _text_of(token) for key, token in config.items() if key.endswith("_token")}
        if source and not isinstance(source, str):
            raise TypeError(f"of type {type(source).__name__}, not text")
        return ChatTemplate(source, special_tokens) if source else None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(f"the chat template of {template or tokenizer} cannot be read: {error!s:.300}") from error


def _default(templates: Any) -> Any:
    """Return the template, or of several named ones the default."""
    if not isinstance(templates, list):
        return templates
    return {named["name"]: named["template"] for named in templates}.get("default")


def _text_of(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


class ConversationEncoder:
    """Encodes conversations, JSON of [place, object], as pairs of rows: TOKENS and LEARNT."""

    def __init__(self, places: ByteLevel | Tokenizer, template: ChatTemplate | None) -> None:
        self._places, self._template = places, template

    def __call__(self, conversation: bytes) -> npt.NDArray[Any]:
        """Return the rows [2, tokens]. Raises Refused if the object is no conversation or the template fails."""
        place, item = json.loads(conversation)
        try:
            if MARKS.search(conversation):
                raise ValueError("it holds U+FDD0 or U+FDD1, which Unicode keeps for use within programs")
            return self._encode(item)
        except TemplateFailed as error:
            raise Refused(f"{place}: the chat template {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{place}: no conversation, which has {_KINDS} ({type(error).__name__}: {error})") from error

    def _encode(self, item: Mapping[str, Any]) -> npt.NDArray[Any]:
        messages = item.get("messages")
        prompt, completion = ([], messages) if messages is not None else (item["prompt"], item["completion"])
        if isinstance(prompt, str):
            text, spans, ends = prompt + completion, [(len(prompt), len(prompt + completion))], [self._places.end]
        else:
            if self._template is None:
                raise TemplateFailed("that messages need is missing: name one with --chat-template")
            options = {"tools": item["tools"]} if item.get("tools") else {}
            messages = [_checked(message) for message in [*prompt, *completion]]
            text, spans = self._template.spans(messages, len(prompt), options)
            ends = []
        if not spans:
            raise ValueError("no message has the role assistant")
        ids, begins, stops = self._places.find(text.encode(errors="replace").decode())
        learnt = np.zeros(len(ids) + len(ends), dtype=np.int32)
        for begin, stop in spans:
            learnt[: len(ids)] |= (stops > begin) & (begins < stop)
        learnt[len(ids) :] = 1
        learnt[:1] = 0  # nothing of this conversation comes before it
        return np.stack((np.append(ids, ends), learnt)).astype(np.int32)


def _checked(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without empty fields, which a column of Parquet has wherever another message has the field.

    Raises ValueError for a message without a role, of which a template could only say that something is undefined.
    """
    if not isinstance(message["role"], str):
        raise ValueError(f"the role of a message is {message['role']!r:.80}, not a text")
    return {key: value for key, value in message.items() if value is not None or key == "content"}


class Packing:
    """Packs encoded conversations into sequences of `length` tokens: none lies in two, and a longer one is cut.

    A conversation without a learnt token before the cut is left out: alone in a step it would leave no loss. A sequence
    is filled with tokens `filler`, a document that is not learnt.
    """

    def __init__(self, length: int, filler: int, *, may_be_empty: bool = False) -> None:
        self._length, self._filler, self._may_be_empty = length, filler, may_be_empty
        self._conversations = self._learnt = self._cut = self._left_out = 0

    def __str__(self) -> str:
        """Return what was packed, for the user."""
        notes = [f"{self._cut} cut to {self._length} tokens"] if self._cut else []
        notes += [f"{self._left_out} left out: no learnt token in {self._length}"] if self._left_out else []
        shown = f" ({', '.join(notes)})" if notes else ""
        return f"{self._conversations} conversations{shown}, {self._learnt} tokens learnt"

    def pack(self, conversations: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        """Yield the conversations, sequence by sequence, and what fills the sequences.

        Raises Refused if every conversation was left out, unless the result may be empty.
        """
        rows: list[tuple[int, list[npt.NDArray[Any]]]] = []
        for conversation in conversations:
            size = min(conversation.shape[1], self._length)
            learnt = int(conversation[LEARNT, :size].sum())
            if not learnt:
                self._left_out += 1
                continue
            self._conversations += 1
            self._cut += size < conversation.shape[1]
            self._learnt += learnt
            fitting = [number for number, (free, _) in enumerate(rows) if free >= size]
            fullest = min(fitting, key=lambda number: rows[number][0], default=None)
            free, members = (self._length, []) if fullest is None else rows.pop(fullest)
            rows.append((free - size, [*members, conversation[:, :size]]))
            if len(rows) > _OPEN_ROWS or not rows[-1][0]:
                fullest = min(range(len(rows)), key=lambda number: rows[number][0])
                yield from self._fill(*rows.pop(fullest))
        for row in rows:
            yield from self._fill(*row)
        if not (self._conversations or self._may_be_empty):
            raise Refused(
                f"none of {self._left_out} conversations has a learnt token in its first {self._length} tokens:"
                " nothing is left to learn; choose a longer --chat"
            )

    def _fill(self, free: int, members: list[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        yield from members
        if free:
            yield np.array([[self._filler], [0]], dtype=np.int32).repeat(free, axis=1)
