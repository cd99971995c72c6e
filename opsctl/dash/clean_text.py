"""Text of other users without characters that a browser would not show as they are."""

from __future__ import annotations

import re

from opsctl.telemetry.logs.log_lines import for_terminal

_COLOUR = re.compile(r"\x1b\[[0-?]*m")


def clean(text: str) -> str:
    """Return text without control characters, colours, invisible characters and changes of the writing direction."""
    lines = [for_terminal(line.encode(errors="replace")) for line in text.split("\n")]
    return _COLOUR.sub("", "\n".join(lines))
