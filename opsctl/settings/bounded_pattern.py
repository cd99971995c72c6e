"""Patterns of users, searched by RE2 in linear time: texts may be hostile, and patterns careless."""

from typing import Any

from opsctl.base.tables import read_package_table

MAX_LINE_BYTES = 4096
"""A longer line is cut before the search."""
MAX_PATTERN_CHARS = 1000
MAX_PATTERN_BYTES = 1 << 18
"""Memory of a compiled pattern. It also bounds the search: the time is the size of the pattern times the line."""


class BoundedPattern:
    """A pattern whose search takes time in proportion to the line."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._compiled.groupindex)

    def search(self, text: str, max_bytes: int = MAX_LINE_BYTES) -> dict[str, str] | None:
        """Return the named groups of the first match, None without a match. A longer text is cut before the search."""
        line = text.encode(errors="replace")[:max_bytes]
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
    hints = read_package_table("settings/bounded_pattern.toml")
    instead = next((hint for piece, hint in hints.items() if piece in reason), "")
    return f"{reason}; {instead}" if instead else reason
