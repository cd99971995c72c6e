"""Patterns of users for log lines, matched in bounded time: a log line may be hostile, and a pattern careless.

A pattern is cut at every `.*` and `.+` outside groups. The parts are searched one after another, so that the time is
the sum of the parts and not their product. A part is refused if its own time could grow faster than the third power of
the length of a line. The length is bounded.
"""

from __future__ import annotations

import re
import re._constants as ops  # type: ignore[import-not-found]  # typeshed has no stub for the parser of re
import re._parser as parser  # type: ignore[import-not-found]  # as above
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_LINE_CHARS = 2048
"""A longer line is cut before the search: the time grows at most with the square of its length."""
MAX_FREE_LINE_CHARS = 512
"""The same for a pattern with a free repetition: the time grows at most with the third power of the length."""
MAX_PATTERN_CHARS = 1000
MANY = 16
"""A repetition with a higher limit counts as unlimited."""
MAX_FREE_REPEATS = 1
"""Repetitions in one part that can give back characters to what follows. Each multiplies the time by the length."""


@dataclass(frozen=True, slots=True)
class BoundedPattern:
    """A pattern whose search takes bounded time."""

    parts: tuple[re.Pattern[str], ...]
    max_chars: int

    def search(self, text: str) -> dict[str, str] | None:
        """Return the named groups of the first match, None without a match."""
        text, at = text[: self.max_chars], 0
        groups: dict[str, str] = {}
        for part in self.parts:
            match = part.search(text, at)
            if match is None:
                return None
            at = match.end()
            groups |= {name: value for name, value in match.groupdict().items() if value is not None}
        return groups


def compile_bounded(pattern: str) -> BoundedPattern:
    """Return the compiled pattern. Raises ValueError with the reason for one that is invalid or could take long."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"the pattern has more than {MAX_PATTERN_CHARS} characters")
    try:
        re.compile(pattern)
        parts = [part for part in _split(pattern) if part]
        free_parts = [part for part in parts if _check(part)]
        return BoundedPattern(tuple(map(re.compile, parts)), MAX_FREE_LINE_CHARS if free_parts else MAX_LINE_CHARS)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r:.80} is not a regular expression: {error}") from error


def _split(pattern: str) -> Iterator[str]:
    """Yield the parts of a pattern between `.*`, `.+`, `.*?` and `.+?` outside groups and sets."""
    if "|" in pattern and _has_outer_alternative(pattern):
        yield pattern
        return
    begin = 0
    for at, depth in _places(pattern):
        if depth == 0 and at >= begin and pattern[at] == "." and pattern[at + 1 : at + 2] in {"*", "+"}:
            yield pattern[begin:at]
            begin = at + 2 + (pattern[at + 2 : at + 3] in {"?", "+"})
    yield pattern[begin:]


def _has_outer_alternative(pattern: str) -> bool:
    return any(depth == 0 and pattern[at] == "|" for at, depth in _places(pattern))


def _places(pattern: str) -> Iterator[tuple[int, int]]:
    """Yield the places of the characters outside sets that are not escaped, with the depth of their group."""
    at = depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at = _end_of_set(pattern, at)
            continue
        depth += (char == "(") - (char == ")")
        yield at, depth
        at += 1


def _end_of_set(pattern: str, begin: int) -> int:
    at = begin + 1 + (pattern[begin + 1 : begin + 2] == "^")
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _check(part: str) -> bool:
    """Return whether a part has a free repetition. Raises ValueError for a part whose time could grow fast."""
    tokens = list(parser.parse(part))
    free = _count_free(tokens, [])
    if free > MAX_FREE_REPEATS:
        raise ValueError(
            f"{part!r:.80} has {free} repetitions that overlap with what follows: the search could take hours;"
            " use narrower sets, such as [^,]* or \\d+"
        )
    return free > 0


def _count_free(tokens: list[Any], after: list[Any]) -> int:
    """Return the number of repetitions that can give back characters to what follows. Raises ValueError."""
    count = 0
    for number, (op, argument) in enumerate(tokens):
        following = tokens[number + 1 :] + after
        if op in {ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT}:
            count += _count_repeat(argument, following)
        elif op is ops.SUBPATTERN:
            count += _count_free(list(argument[3]), following)
        elif op is ops.BRANCH:
            count += max(_count_free(list(branch), following) for branch in argument[1])
        elif op in {ops.ASSERT, ops.ASSERT_NOT}:
            count += _count_free(list(argument[1]), following)
        elif op is ops.ATOMIC_GROUP:
            count += _count_free(list(argument), following)
        elif op in {ops.GROUPREF, ops.GROUPREF_EXISTS, ops.GROUPREF_IGNORE}:
            raise ValueError("references to groups are not allowed: the search could take hours")
    return count


def _count_repeat(argument: Any, following: list[Any]) -> int:
    _, highest, body = argument
    inner = list(body)
    item = _single(inner)
    if item is None:
        if highest > 1 and _is_variable(inner):
            raise ValueError("a repetition or an alternative within a repetition: the search could take hours")
        return _count_free(inner, following) + (1 if highest > MANY else 0)
    if highest <= MANY or not following:
        return 0
    return 1 if _overlaps(item, following) else 0


def _is_variable(tokens: list[Any]) -> bool:
    """Whether the tokens can match in more than one way."""
    for op, argument in tokens:
        if op in {ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT}:
            if argument[0] != argument[1] or _is_variable(list(argument[2])):
                return True
        elif op is ops.BRANCH or (op is ops.SUBPATTERN and _is_variable(list(argument[3]))):
            return True
    return False


def _single(tokens: list[Any]) -> frozenset[int] | None:
    """Return the ASCII characters of a body of one character, None for any other body."""
    if len(tokens) != 1:
        return None
    op, argument = tokens[0]
    if op is ops.SUBPATTERN:
        return _single(list(argument[3]))
    return _characters(op, argument)


def _overlaps(item: frozenset[int], following: list[Any]) -> bool:
    """Whether a character of the repetition can also begin what follows."""
    for op, argument in following:
        if op is ops.AT:
            continue
        if op is ops.SUBPATTERN:
            return _overlaps(item, list(argument[3]))
        if op in {ops.MAX_REPEAT, ops.MIN_REPEAT}:
            characters = _single(list(argument[2]))
            if characters is None or characters & item:
                return True
            if argument[0] > 0:
                return False
            continue
        characters = _characters(op, argument)
        return characters is None or bool(characters & item)
    return False


def _characters(op: Any, argument: Any) -> frozenset[int] | None:
    """Return the ASCII characters that one token matches; None for a token of another kind."""
    if op is ops.LITERAL:
        return frozenset({argument, *map(ord, chr(argument).swapcase())})
    if op is ops.NOT_LITERAL:
        return frozenset(range(128)) - {argument}
    if op is ops.ANY:
        return frozenset(range(128)) - {10}
    if op is not ops.IN:
        return None
    # The set itself is the easiest description of its characters.
    negated = argument[0][0] is ops.NEGATE
    found: set[int] = set()
    for kind, value in argument[1:] if negated else argument:
        found |= _set_item(kind, value)
    return frozenset(range(128)) - found if negated else frozenset(found)


_CATEGORIES = {
    ops.CATEGORY_DIGIT: r"\d",
    ops.CATEGORY_NOT_DIGIT: r"\D",
    ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S",
    ops.CATEGORY_WORD: r"\w",
    ops.CATEGORY_NOT_WORD: r"\W",
}


def _set_item(kind: Any, value: Any) -> set[int]:
    if kind is ops.RANGE:
        return set(range(value[0], min(value[1], 127) + 1))
    if kind is ops.CATEGORY:
        return {code for code in range(128) if re.match(_CATEGORIES[value], chr(code))}
    return {value}
