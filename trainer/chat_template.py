"""Chat templates, which write messages as text. Strangers write templates, so each runs in a process with limits.

The sandbox of Jinja keeps a template from the machine, and no single operation of Python from time and memory: a
comparison of nested lists can take for ever, and no signal interrupts it. So `python -m opsctl.trainer.chat_template`
compiles and runs templates: one JSON object a line asks for a conversation, and one answers.
"""

import contextlib
import datetime
import functools
import hashlib
import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Characters that Unicode keeps for such use within a program: where a learnt text begins and ends."""
MARKS = re.compile(rb"\\ufdd[01]")
"""The characters in JSON."""
_TODAY = datetime.date(2024, 7, 26)
"""For templates that write a date: the same input gives the same corpus. It is what Llama's writes without a clock."""
_MAX_RENDER_S = 2.0
"""Of the processor, to compile a template, and to write a conversation once."""
_MAX_PROCESS_BYTES = 512 << 20
_MAX_ANSWER_BYTES = 64 << 20
_MAX_REASON_CHARS = 500
_GENERATION = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")
_ARGV, _PIPE = (sys.executable, "-P", "-m", "opsctl.trainer.chat_template"), subprocess.PIPE
_IDLE: list[subprocess.Popen[bytes]] = []
"""Processes that wait for a conversation. They end with this one."""

Span = tuple[int, int]


class TemplateFailed(ValueError):
    """The template wrote no text of a conversation; the message continues "the chat template …"."""


class ChatTemplate:
    """A Jinja template that writes messages as text, as transformers runs it. Raises TemplateFailed if it is none."""

    def __init__(self, source: str, special_tokens: Mapping[str, Any]) -> None:
        self.sha256 = hashlib.sha256(source.encode()).hexdigest()
        self._source, self._tokens = source, special_tokens
        _ask({"source": source})

    def spans(self, messages: Sequence[Any], first: int, options: Mapping[str, Any]) -> tuple[str, list[Span]]:
        """Return the text of `messages`, and where in it the assistant writes, from message `first` on.

        Without marks of the template, an answer ends with its end token: white space behind that separates messages.
        Raises TemplateFailed if the template fails, takes too much, or does not show where.
        """
        variables = {**self._tokens, **options}
        text, spans = _ask({"source": self._source, "messages": messages, "first": first, "variables": variables})
        return text, [(begin, end) for begin, end in spans]


def _ask(request: Mapping[str, Any]) -> Any:
    """Return the answer of a process to a request. Raises TemplateFailed, also if the process ends."""
    process = _IDLE.pop() if _IDLE else subprocess.Popen(_ARGV, stdin=_PIPE, stdout=_PIPE, stderr=subprocess.DEVNULL)
    answer = b""
    assert process.stdin
    assert process.stdout
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended: explained below
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline(_MAX_ANSWER_BYTES)
    finally:
        if answer.endswith(b"\n"):
            _IDLE.append(process)
        else:
            process.kill()
            process.communicate()
    answered, failure = json.loads(answer) if answer.endswith(b"\n") else (None, _explain_end(process.returncode))
    if failure:
        raise TemplateFailed(failure)
    return answered


def _explain_end(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"takes more than {_MAX_RENDER_S:g} s for a conversation"
    return f"takes more than {_MAX_PROCESS_BYTES >> 20} MB, or writes more than {_MAX_ANSWER_BYTES >> 20} MB"


class _Template:
    """A template in the process that runs it."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        to_json = functools.partial(json.dumps, ensure_ascii=False)  # Jinja's own escapes HTML
        environment.filters |= {"tojson": to_json, "learnt": lambda text: f"{_BEGIN}{text}{_END}"}
        environment.globals |= {"raise_exception": _raise, "strftime_now": _TODAY.strftime}
        # {% generation %}, an addition of transformers, surrounds what the assistant writes.
        self._marks = bool(_GENERATION.search(source))
        marked = _GENERATION.sub(
            lambda tag: f"{{%{tag[1]} {'endfilter' if tag[2] else 'filter learnt'} {tag[3]}%}}", source
        )
        self._template = environment.from_string(marked)

    def spans(self, messages: Sequence[Any], first: int, variables: Mapping[str, Any]) -> tuple[str, list[Span]]:
        text = self._render(messages, variables)
        if self._marks:
            text, spans = _take_marks(text)
            _, earlier = _take_marks(self._render(messages[:first], variables)) if first else ("", [])
            return text, spans[len(earlier) :]
        spans = []
        answers = [n for n, message in enumerate(messages) if n >= first and message["role"] == "assistant"]
        closing = self._find_closing(text, messages[: answers[0]], variables) if answers else ""
        for number in answers:
            before = self._render(messages[:number], variables, add_generation_prompt=True)
            through = self._render(messages[: number + 1], variables).removesuffix(closing)
            if not (text.startswith(through) and through.startswith(before)):
                raise TemplateFailed(
                    f"writes message {number} differently when it is the last, so that its place is unknown: with "
                    "--chat-template, name a template that marks it by {% generation %}"
                )
            spans.append((len(before), len(before) + _answer_chars(through[len(before) :], messages[number])))
        return text, spans

    def _find_closing(self, text: str, prompt: Sequence[Any], variables: Mapping[str, Any]) -> str:
        """Return the end token that the template writes behind any conversation, as Phi 3's; empty if it does not."""
        end = str(variables.get("eos_token") or "")
        if not (end and text.endswith(end)):
            return ""
        closed = self._render(prompt, variables)
        return "" if text.startswith(closed) or not text.startswith(closed.removesuffix(end)) else end

    def _render(self, messages: Sequence[Any], variables: Mapping[str, Any], **more: Any) -> str:
        defaults = {"tools": None, "documents": None, "add_generation_prompt": False}
        _limit_time()
        return self._template.render({**defaults, **variables, "messages": messages, **more})


def _answer_chars(written: str, message: Mapping[str, Any]) -> int:
    """Return the length of an answer with its end token, of what a template wrote for `message`.

    White space that follows nothing but the content is the end of the answer.
    """
    ended, content = written.rstrip(), message.get("content")
    is_bare = not ended or (isinstance(content, str) and content.strip() and ended.endswith(content.rstrip()))
    return len(written if is_bare else ended)


def _take_marks(text: str) -> tuple[str, list[Span]]:
    parts = re.split(f"[{_BEGIN}{_END}]", text)
    places = list(accumulate(map(len, parts)))
    return "".join(parts), list(zip(places[:-1:2], places[1::2], strict=False))


class _TemplateRefused(TemplateError):
    """A template called raise_exception()."""


def _raise(message: str) -> None:
    raise _TemplateRefused(message)


_compile = functools.lru_cache(maxsize=1)(_Template)


def _answer(line: bytes) -> tuple[Any, str]:
    """Return what the template writes, or why it fails."""
    request = json.loads(line)
    try:
        template = _compile(request.pop("source"))
        return (template.spans(**request) if request else None), ""
    except TemplateFailed as error:
        return None, str(error)
    except _TemplateRefused as error:
        return None, f"refuses the conversation: {error!s:.{_MAX_REASON_CHARS}}"
    except MemoryError:
        return None, _explain_end(0)
    except Exception as error:  # noqa: BLE001 (the expressions of a template fail in any way that Python's do)
        return None, f"fails: {type(error).__name__}: {error!s:.{_MAX_REASON_CHARS}}"


def _limit_time() -> None:
    """Let the system end this process after _MAX_RENDER_S more of the processor, whatever it computes."""
    signal.setitimer(signal.ITIMER_PROF, _MAX_RENDER_S)


def main() -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks, with which this one ends
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = _MAX_PROCESS_BYTES if hard == resource.RLIM_INFINITY else min(_MAX_PROCESS_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin.buffer:
        _limit_time()
        sys.stdout.buffer.write(json.dumps(_answer(line)).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
