"""What the last lines of an attempt say about the end of the training. The lines are data: templates/guard."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from opsctl.render import templates_dir
from opsctl.settings.loader import read_toml
from opsctl.state.files import open_regular

MAX_READ_BYTES = 1 << 16
MAX_LINE_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLines:
    """The lines that say whether the training is over; empty if there is none."""

    finished: str = ""
    unfinished: str = ""


def read_last_lines(log: Path, begin: int) -> LastLines:
    """Return what the end of `log` says, from the offset `begin` on. Raises nothing."""
    try:
        with os.fdopen(open_regular(log), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            start = max(begin, size - MAX_READ_BYTES)
            data = os.pread(file.fileno(), max(0, size - start), start)
    except OSError:
        return LastLines()
    return parse_last_lines(data.decode(errors="replace"))


def parse_last_lines(text: str) -> LastLines:
    """Return what a text says. A progress bar is separated from its next state by a carriage return."""
    lines = [line.strip()[-MAX_LINE_CHARS:] for line in re.split(r"[\r\n]+", text)]
    return LastLines(finished=_find("finished", lines), unfinished=_find("unfinished", lines))


def _find(kind: str, lines: list[str]) -> str:
    """Return the last line of a kind; empty without one."""
    return next((line for line in reversed(lines) if any(pattern.search(line) for pattern in _patterns(kind))), "")


@cache
def _patterns(kind: str) -> tuple[re.Pattern[str], ...]:
    rows = read_toml(templates_dir() / "guard" / "last-lines.toml")[kind]
    return tuple(re.compile(row["pattern"]) for row in rows)
