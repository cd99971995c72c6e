"""Patterns of users for log lines, searched by RE2 in linear time: lines may be hostile, and patterns careless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_LINE_BYTES = 4096
"""A longer line is cut before the search."""
MAX_PATTERN_CHARS = 1000
MAX_PATTERN_BYTES = 1 << 18
"""Memory of a compiled pattern. It also bounds the search: the time is the size of the pattern times the line."""
SAY_INSTEAD: Mapping[str, str] = {
    "(?=": "RE2 has no look-ahead: match the text that follows the group, such as step=(?P<step>\\d+),",
    "(?!": "RE2 has no look-ahead: name the characters that may follow, such as [^,]",
    "(?<=": "RE2 has no look-behind: match the text before the group, such as step=(?P<step>\\d+)",
    "(?<!": "RE2 has no look-behind: name the characters that may come before, such as [^,]",
    "(?P": "RE2 has no references to groups: write the expression of the group again",
    "(?>": "RE2 has no atomic groups: write (?:...); the search takes linear time",
    "(?x": "write the pattern without spaces and comments",
    "(?#": "write the pattern without comments",
    "\\Z": "write \\z for the end of the line",
    "++": "RE2 has no possessive repetitions: write +",
    "*+": "RE2 has no possessive repetitions: write *",
    "too large": "write * or + instead of long counted repetitions",
    "repetition size": "a repetition is counted up to 1000: write * or +",
    **{
        f"\\{number}": "RE2 has no references to groups: write the expression of the group again"
        for number in "123456789"
    },
}
"""What to write instead of an expression of Python's `re`, by a piece of RE2's error."""


class BoundedPattern:
    """A pattern whose search takes time in proportion to the line."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    @property
    def names(self) -> frozenset[str]:
        """The names of the groups."""
        return frozenset(self._compiled.groupindex)

    def search(self, text: str) -> dict[str, str] | None:
        """Return the named groups of the first match, None without a match."""
        line = text.encode(errors="replace")[:MAX_LINE_BYTES]
        match = self._compiled.search(line)
        if match is None:
            return None
        return {name: value.decode(errors="replace") for name, value in match.groupdict().items() if value is not None}


def compile_bounded(pattern: str) -> BoundedPattern:
    """Return the compiled pattern. Raises ValueError with the reason for one that is invalid or too large."""
    import re2  # noqa: PLC0415  # loads in 12 ms, and few trains have a pattern

    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"the pattern has more than {MAX_PATTERN_CHARS} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_BYTES
    try:
        return BoundedPattern(re2.compile(pattern, options))
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"{pattern!r:.80} is not a regular expression of RE2: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    [reason, *_] = error.args
    reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)
    for piece, instead in SAY_INSTEAD.items():
        if piece in reason:
            return f"{reason}; {instead}"
    return reason
