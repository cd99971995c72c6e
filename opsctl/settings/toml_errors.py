"""Why a settings file cannot be read, in words for its author."""

from __future__ import annotations

import tomllib


def describe_unreadable(error: Exception) -> str:
    """Return why a settings file cannot be read."""
    match error:
        case OSError():
            return error.strerror or str(error)
        case UnicodeDecodeError():
            return f"not a text in UTF-8: byte {error.start + 1} is no part of one"
        case tomllib.TOMLDecodeError():
            return f"not valid TOML: {error}"
        case RecursionError():
            return "not valid TOML: nested too deeply"
    return str(error)
