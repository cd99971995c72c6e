"""Conversations: the tokens of each, which of them the model shall learn to write, and their packing into sequences.

A conversation is an object with `messages`, a list of `{"role": …, "content": …}`, or with `prompt` and `completion`,
both texts or both lists of messages. The chat template of the tokenizer writes messages as text. The model learns the
messages of the assistant, or the completion, with the token that ends them.
"""

import contextlib
import hashlib
import json
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from jinja2.sandbox import ImmutableSandboxedEnvironment

from opsctl.trainer.bounded_files import read_bounded
from opsctl.trainer.errors import Refused
from opsctl.trainer.tokens import MAX_CONFIG_BYTES, ByteLevel, Tokenizer, read_tokenizer_config

TOKENS, LEARNT = 0, 1
"""Rows of an encoded conversation: the tokens, and 1 for those that the model learns."""
_OPEN_ROWS = 256
"""Sequences that are packed at a time: more leave less space unused, and take more memory."""
_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Characters that Unicode keeps for such use within a program: where a learnt text begins and ends."""
_MARKS = re.compile(rb"\\ufdd[01]")
_MAX_RENDER_S = 2.0
_MAX_OPERATION = 1 << 20
"""Bits of a number, or characters, that one operation of a template may make."""
_GENERATION = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")
_KINDS = '"messages", or "prompt" and "completion"'

Span = tuple[int, int]


class _TemplateFailed(Exception):
    """The template wrote no text of a conversation; the message continues "the chat template …"."""


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox of Jinja with bounds for what one operation computes: no signal interrupts one."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        match left, right:
            case int(), int():
                size = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            case str() | list() | tuple(), int():
                size = len(left) * right
            case int(), str() | list() | tuple():
                size = left * len(right)
            case _:
                size = 0
        if size > _MAX_OPERATION:
            raise _TemplateRefused(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


@contextlib.contextmanager
def _bounded_time() -> Iterator[None]:
    """Raise _TemplateFailed after _MAX_RENDER_S of the processor. Only the main thread can be interrupted."""

    def stop(*_: object) -> None:
        raise _TemplateFailed(f"takes more than {_MAX_RENDER_S:g} s for a conversation")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, _MAX_RENDER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class ChatTemplate:
    """A Jinja template that writes messages as text, as transformers runs it; untrusted, so in a sandbox."""

    def __init__(self, source: str, special_tokens: Mapping[str, Any]) -> None:
        self.sha256 = hashlib.sha256(source.encode()).hexdigest()
        self._tokens = special_tokens
        environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters |= {"tojson": _to_json, "learnt": lambda text: f"{_BEGIN}{text}{_END}"}
        environment.globals["raise_exception"] = _raise
        # {% generation %}, an addition of transformers, surrounds what the assistant writes.
        self._marks = bool(_GENERATION.search(source))
        marked = _GENERATION.sub(
            lambda tag: f"{{%{tag[1]} {'endfilter' if tag[2] else 'filter learnt'} {tag[3]}%}}", source
        )
        self._template = environment.from_string(marked)

    def spans(self, messages: Sequence[Any], first: int, options: Mapping[str, Any]) -> tuple[str, list[Span]]:
        """Return the text of `messages`, and where in it the assistant writes, from message `first` on.

        Without marks of the template, an answer ends with its end token: white space behind that separates messages.
        Raises _TemplateFailed if the template fails or does not show where.
        """
        text = self._render(messages, options)
        if self._marks:
            text, spans = _take_marks(text)
            _, earlier = _take_marks(self._render(messages[:first], options)) if first else ("", [])
            return text, spans[len(earlier) :]
        spans = []
        for number, message in enumerate(messages):
            if number < first or message["role"] != "assistant":
                continue
            before = self._render(messages[:number], options, add_generation_prompt=True)
            through = self._render(messages[: number + 1], options)
            if not (text.startswith(through) and through.startswith(before)):
                raise _TemplateFailed(
                    f"writes message {number} differently when it is the last, so that its place is unknown: with "
                    "--chat-template, name a template that marks it by {% generation %}"
                )
            spans.append((len(before), len(before) + _answer_chars(through[len(before) :], message)))
        return text, spans

    def _render(self, messages: Sequence[Any], options: Mapping[str, Any], **more: Any) -> str:
        defaults = {"tools": None, "documents": None, "add_generation_prompt": False}
        try:
            with _bounded_time():
                return self._template.render({**defaults, **self._tokens, **options, "messages": messages, **more})
        except _TemplateFailed:
            raise
        except _TemplateRefused as error:
            raise _TemplateFailed(f"refuses the conversation: {error}") from error
        except Exception as error:  # the expressions of a template fail in any way that Python's do
            raise _TemplateFailed(f"fails: {type(error).__name__}: {error}") from error


def _answer_chars(written: str, message: Mapping[str, Any]) -> int:
    """Return the length of an answer with its end token, of what a template wrote for `message`.

    White space that follows nothing but the content is the end of the answer.
    """
    ended, content = written.rstrip(), message.get("content")
    is_bare = not ended or (isinstance(content, str) and content.strip() and ended.endswith(content.rstrip()))
    return len(written if is_bare else ended)


def _take_marks(text: str) -> tuple[str, list[Span]]:
    parts = re.split(f"[{_BEGIN}{_END}]", text)
    places = np.cumsum([len(part) for part in parts]).tolist()
    return "".join(parts), list(zip(places[:-1:2], places[1::2], strict=False))


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)  # Jinja's own escapes HTML


class _TemplateRefused(jinja2.TemplateError):
    """A template called raise_exception()."""


def _raise(message: str) -> None:
    raise _TemplateRefused(message)


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
        return ChatTemplate(source, special_tokens) if source else None
    except (ValueError, KeyError, TypeError, RecursionError, jinja2.TemplateError) as error:
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
            if _MARKS.search(conversation):
                raise ValueError("it holds U+FDD0 or U+FDD1, which Unicode keeps for use within programs")
            return self._encode(item)
        except _TemplateFailed as error:
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
                raise _TemplateFailed("that messages need is missing: name one with --chat-template")
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
