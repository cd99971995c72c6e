"""A pane of text that scrolls, wraps and can be searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import RichLog

MAX_LINES = 5000


class TextPane(RichLog):
    """A pane of text. The search matches what stands on one row, without regard to case."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", show=False),
        Binding("k", "scroll_up", show=False),
        Binding("g", "scroll_home", show=False),
        Binding("G", "scroll_end", show=False),
    ]

    def __init__(self, name: str, *, follows: bool = False) -> None:
        super().__init__(id=name, wrap=True, min_width=1, max_lines=MAX_LINES, auto_scroll=follows)
        self.found: int | None = None
        self.wanted = ""

    def show(self, content: RenderableType | Sequence[str]) -> None:
        """Replace the text, and stay at the same row where possible."""
        row = self.scroll_offset.y
        self.clear()
        self._write_all(content, scroll_end=self.auto_scroll)
        if not self.auto_scroll:
            self.scroll_to(y=row, animate=False)

    def append(self, content: RenderableType | Sequence[str]) -> None:
        """Add text at the end. A log that is read further up stays where it is."""
        self._write_all(content, scroll_end=self.auto_scroll and self.is_vertical_scroll_end)

    def _write_all(self, content: RenderableType | Sequence[str], *, scroll_end: bool) -> None:
        if isinstance(content, (list, tuple)):
            for line in content:
                self.write(Text(line, overflow="fold"), scroll_end=scroll_end)
        else:
            self.write(content, scroll_end=scroll_end)

    def search(self, text: str, *, backwards: bool = False) -> str:
        """Go to the next row that contains `text`; return what to report."""
        self.wanted = text.casefold()
        rows = [index for index, strip in enumerate(self.lines) if self.wanted in strip.text.casefold()]
        if not self.wanted or not rows:
            self.found = None
            return f"{text!r} does not occur in this pane" if text else ""
        step = -1 if backwards else 1
        ordered = rows[::step]
        self.found = next((row for row in ordered if self._is_beyond(row, step)), ordered[0])
        self.scroll_to(y=self.found, animate=False, immediate=True)
        return f"{rows.index(self.found) + 1} of {len(rows)}: {self.lines[self.found].text.strip()}"

    def _is_beyond(self, row: int, step: int) -> bool:
        """Return whether the search has not reached the row yet."""
        return self.found is None or (row - self.found) * step > 0
