"""The first line that a person wrote in a reply, without quotations, greetings and markup. Pure."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from html.parser import HTMLParser

from opsctl.base.tables import read_package_table

MAX_GREETING_WORDS = 4
MAX_ATTRIBUTION_LINES = 3
EMPHASIS = "*_`\"'“”„‘’«» \t"
"""Marks that clients put around a word: of markdown, of Slack, and quotation marks; `~` strikes a word out."""
_GREETING = re.compile(read_package_table("alerts/answers.toml")["forms"]["greeting"], re.IGNORECASE)
_DATE = re.compile(r"\d{1,2}:\d\d|(?<!\d)20\d\d(?!\d)")
_FENCE = "```"
_BLOCKS = frozenset({"address", "blockquote", "br", "div", "h1", "h2", "h3", "hr", "li", "ol", "p", "pre", "tr", "ul"})
_UNSEEN = frozenset(
    {"del", "head", "noscript", "s", "script", "select", "strike", "style", "template", "textarea", "title"}
)
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?![.\d])", re.IGNORECASE)


def find_own_line(text: str, is_command: Callable[[str], bool]) -> str:
    """Return the first line of the person's own text; empty if there is none.

    A line that names the author of a quotation is no text of the person. `is_command` tells such a line from an answer
    above it that the client has put into the same paragraph.
    """
    lines = [clean_line(line) for line in text.splitlines()]
    index = 0
    while index < len(lines):
        line = lines[index]
        is_greeting = len(line.split()) <= MAX_GREETING_WORDS and _GREETING.fullmatch(line)
        if not line or line.startswith(">") or is_greeting:
            index += 1
        elif not is_command(line) and (length := _count_attribution(lines[index:])):
            index += length
        else:
            return line
    return ""


def clean_line(line: str) -> str:
    """Return the line without invisible characters and the marks around it; a code fence stays."""
    normal = unicodedata.normalize("NFKC", line).strip()
    visible = "".join(character for character in normal if unicodedata.category(character) not in {"Cf", "Cc"})
    return visible if visible.startswith(_FENCE) else visible.strip(EMPHASIS)


def _count_attribution(lines: Sequence[str]) -> int:
    """Return how many lines name the author and the date of the quotation below them, in any language."""
    for count in range(1, MAX_ATTRIBUTION_LINES + 1):
        head, rest = lines[:count], lines[count:]
        below = next(filter(None, rest), "")
        if head[-1].endswith(":") and below.startswith(">") and _DATE.search(" ".join(head)):
            return count
        if not rest or not rest[0]:
            return 0
    return 0


def to_text(html: str) -> str:
    """Return the visible text of an HTML mail; quotations begin with `>` as in plain text."""
    reader = _TextReader()
    reader.feed(_drop_unclosed(html))
    reader.close()
    return "".join(reader.pieces)


def _drop_unclosed(html: str) -> str:
    """Return the markup without what never ends: html.parser searches the whole rest for the end of each."""
    html = html.replace("<![", "<!")
    end = html.rfind("-->") + 1
    html = html[:end] + html[end:].replace("<!--", " ")
    end = html.rfind(">") + 1
    return html[:end] + html[end:].replace("<", " ")


class _TextReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._quotes = 0
        self._hidden = ""
        """The element whose text nobody sees."""
        self._depth = 0
        """How often that element is open within itself."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden:
            self._depth += tag == self._hidden
            return
        if tag in _UNSEEN or "hidden" in dict(attrs) or _HIDDEN.search(dict(attrs).get("style") or ""):
            self._hidden, self._depth = tag, 1
            return
        self._quotes += tag == "blockquote"
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            self._depth -= tag == self._hidden
            self._hidden = self._hidden if self._depth else ""
            return
        self._quotes = max(0, self._quotes - (tag == "blockquote"))
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(" ".join(data.split("\n")))

    def _break(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n" + "> " * (self._quotes > 0))
