"""One train: its card, log, diagnosis and stacks."""

from collections.abc import Sequence
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Footer, RichLog, Static

from opsctl.cli.output import cell
from opsctl.cli.status_card import STYLES, status_block
from opsctl.cli.top.dialogs import TextDialog
from opsctl.cli.top.trains_feed import TrainsFeed, TrainsPage
from opsctl.telemetry.logs.train_logs import TrainLog

PANES = ("card", "log", "why", "stacks")
COMMAND_PANES = {"why": "opsctl reads the logs …", "stacks": "opsctl asks the ranks, for up to 10 s …"}
"""Panes that show the output of a command, and the text until then."""
FOLLOW_S = 2.0
MAX_LINES = 5000
ACTION_KEYS = (
    Binding("h", "app.ask('hold')", "Hold"),
    Binding("r", "app.ask('release')", "Release"),
    Binding("a", "app.ask('ack')", "Ack"),
    Binding("f1,question_mark", "app.show_keys", "Keys", key_display="F1"),
    Binding("q,f10", "app.quit", "Quit", key_display="q"),
)
"""Keys of the screens of one and of all trains."""


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
        ahead = (row for row in ordered if self.found is None or (row - self.found) * step > 0)
        self.found = next(ahead, ordered[0])
        self.scroll_to(y=self.found, animate=False, immediate=True)
        return f"{rows.index(self.found) + 1} of {len(rows)}: {self.lines[self.found].text.strip()}"


class TrainsApp(App[None]):
    """What the screens use of the application."""

    feed: TrainsFeed
    page: TrainsPage | None

    def action_read_page(self) -> None:
        raise NotImplementedError


class TrainScreen(Screen[None]):
    app: TrainsApp
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.pop_screen", "Back", key_display="Esc"),
        Binding("tab", "next_pane(1)", "Pane", key_display="Tab"),
        Binding("shift+tab", "next_pane(-1)", show=False),
        *[Binding(str(number), f"show_pane('{name}')", show=False) for number, name in enumerate(PANES, 1)],
        Binding("slash,f3", "search", "Find", key_display="/"),
        Binding("n", "search_again(False)", show=False),
        Binding("N", "search_again(True)", show=False),
        Binding("f5,ctrl+r", "reload", "Load", key_display="F5"),
        *ACTION_KEYS,
    ]

    def __init__(self, train: str) -> None:
        super().__init__()
        self.train = train
        self.loaded: set[str] = set()
        self.source: TrainLog | None = None
        self.is_reading = False

    def compose(self) -> ComposeResult:
        yield Static(id="tabs")
        with ContentSwitcher(initial="card"):
            for name in PANES:
                yield TextPane(name, follows=name == "log")
        yield Static(id="message")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.set_interval(FOLLOW_S, self.follow)
        self.show_page(self.app.page)
        self.action_show_pane("card")

    @property
    def pane(self) -> TextPane:
        return self.query_one(f"#{self.query_one(ContentSwitcher).current}", TextPane)

    def show_page(self, page: TrainsPage | None) -> None:
        """Show the train as of a new snapshot."""
        status = page.find(self.train) if page else None
        if page and status:
            self.query_one("#card", TextPane).show(status_block(status, page.at))
        elif page:
            self.query_one("#card", TextPane).show([page.problem or f"{self.train} no longer exists below the root"])
        self._draw_tabs()

    def _draw_tabs(self) -> None:
        page = self.app.page
        status = page.find(self.train) if page else None
        state = status.state if status else "?"
        line = cell(f"{self.train} ", "bold") + Text(f" {state} ", STYLES.get(state, "")) + Text("  ")
        current = self.query_one(ContentSwitcher).current
        for number, name in enumerate(PANES, 1):
            line.append(f" {number} {name} ", "reverse" if name == current else "")
        self.query_one("#tabs", Static).update(line)

    def action_show_pane(self, name: str) -> None:
        self.query_one(ContentSwitcher).current = name
        self.pane.focus()
        self._draw_tabs()
        self._report("")
        if name not in self.loaded:
            self._load(name)

    def action_next_pane(self, step: int) -> None:
        index = PANES.index(self.pane.id or "card")
        self.action_show_pane(PANES[(index + step) % len(PANES)])

    def action_reload(self) -> None:
        name = self.pane.id or "card"
        if name == "card":
            self.app.action_read_page()
        elif not self.is_reading:
            self._load(name)

    def _load(self, name: str) -> None:
        self.loaded.add(name)
        if name == "log":
            self._load_log()
        elif name in COMMAND_PANES:
            self.pane.show([COMMAND_PANES[name]])
            self._load_command(name)

    @work(thread=True, group="log")
    def _load_log(self) -> None:
        self.is_reading = True
        self.source, lines = self.app.feed.begin_log(self.train)
        self.is_reading = False
        self.app.call_from_thread(self.query_one("#log", TextPane).show, lines or ["The log is empty."])

    @work(thread=True, group="command")
    def _load_command(self, name: str) -> None:
        _, text = self.app.feed.run([name, "--", self.train])
        self.app.call_from_thread(self.query_one(f"#{name}", TextPane).show, text.split("\n"))

    def follow(self) -> None:
        """Add the new lines of the log while it is visible."""
        if self.source is not None and self.pane.id == "log" and not self.is_reading:
            self._follow(self.source)

    @work(thread=True, group="log")
    def _follow(self, source: TrainLog) -> None:
        self.is_reading = True
        lines = self.app.feed.follow_log(source)
        self.is_reading = False
        if lines:
            self.app.call_from_thread(self.query_one("#log", TextPane).append, lines)

    def action_search(self) -> None:
        def search(text: str | None) -> None:
            if text:
                self.pane.found = None
                self._report(self.pane.search(text))

        self.app.push_screen(TextDialog("Search for:", self.pane.wanted), search)

    def action_search_again(self, backwards: bool) -> None:  # noqa: FBT001 (the signature of an action)
        if self.pane.wanted:
            self._report(self.pane.search(self.pane.wanted, backwards=backwards))

    def _report(self, text: str) -> None:
        self.query_one("#message", Static).update(cell(text))
