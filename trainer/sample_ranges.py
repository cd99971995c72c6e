"""Ranges of samples in settings, such as those of a loss spike: `2048000-2049023`."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)


def check_range(text: str) -> str:
    """Return a range of samples `A-B`. Raises ValueError."""
    match = _RANGE.fullmatch(text)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"{text!r:.80} is not a range of samples A-B with A up to B")
    return text
