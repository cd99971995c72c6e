"""The application `opsctl top`: the table of trains, and the one snapshot that all screens share."""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from opsctl.app import App
from opsctl.base.tables import read_package_table
from opsctl.cli.output import cell
from opsctl.cli.status_card import STYLES
from opsctl.cli.status_table import alert_texts, choose_columns, needs_attention, train_row
from opsctl.cli.top.dialogs import ConfirmDialog, HelpDialog, TextDialog
from opsctl.cli.top.train_screen import ACTION_KEYS, TrainsApp, TrainScreen
from opsctl.cli.top.trains_feed import TrainsFeed, TrainsPage
from opsctl.monitor.status import TrainStatus

MIN_AGE_S = 2.0
"""F5 does not read again within this time."""
MAX_ALERT_LINES = 4
CELL_PADDING = 1
OUTSIDE_WIDTH = 6
"""The mark with its padding, the padding of the last column, and the scroll bar."""
FAILED_S, DONE_S = 15.0, 8.0
"""How long the result of an action is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainAction:
    """What a key does to a train: one table of train_actions.toml, which explains the fields."""

    question: str
    command: list[str]
    needs_reason: bool = False
    of_alert: bool = False
    missing: str = ""

    def find_target(self, status: TrainStatus) -> str:
        """Return the target of the command; empty if there is none."""
        if not self.of_alert:
            return status.train
        return next((alert.key for alert in status.alerts if not alert.acknowledged), "")


@cache
def load_actions() -> dict[str, TrainAction]:
    tables = read_package_table("cli/top/train_actions.toml")
    return {name: TrainAction(**fields) for name, fields in tables.items()}


class TrainTable(DataTable[Text]):
    """The table, with the keys of vi."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "screen.open", "Open"),
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("g", "scroll_top", show=False),
        Binding("G", "scroll_bottom", show=False),
    ]


class TrainsScreen(Screen[None]):
    """The table of trains, below the open alerts."""

    app: "TopApp"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash,f3,f4", "filter", "Filter", key_display="/"),
        Binding("escape", "clear_filter", show=False),
        Binding("f5,ctrl+r", "app.read_page", "Refresh", key_display="F5"),
        *ACTION_KEYS,
    ]

    def __init__(self) -> None:
        super().__init__()
        self.pattern = ""

    def compose(self) -> ComposeResult:
        yield Static("opsctl reads the trains …", id="headline")
        yield Static(id="alerts")
        yield TrainTable(cursor_type="row", cell_padding=CELL_PADDING, id="trains")
        yield Footer(show_command_palette=False)

    @property
    def table(self) -> TrainTable:
        return self.query_one("#trains", TrainTable)

    @property
    def train(self) -> str:
        """The train below the cursor; empty without one."""
        if not self.table.row_count:
            return ""
        return str(self.table.coordinate_to_cell_key(self.table.cursor_coordinate).row_key.value)

    def on_resize(self) -> None:
        self.show_page(self.app.page)

    def show_page(self, page: TrainsPage | None) -> None:
        """Show a new snapshot. The cursor stays on its train."""
        if page is None:
            return
        statuses = [status for status in page.statuses if self.pattern.casefold() in _searchable(status)]
        self.query_one("#headline", Static).update(self._headline(page, len(statuses)))
        alerts = alert_texts(page.alerts, MAX_ALERT_LINES)
        away = next((status.slurm for status in page.statuses if status.slurm), "")
        if away:
            line = cell(away, "yellow")
            line.no_wrap, line.overflow = True, "ellipsis"
            alerts.insert(0, line)
        self.query_one("#alerts", Static).update(Group(*alerts))
        self.query_one("#alerts", Static).display = bool(alerts)
        self._fill(page, statuses)

    def _headline(self, page: TrainsPage, shown: int) -> Text:
        if page.problem:
            return cell(page.problem, "bold red")
        needy = sum(map(needs_attention, page.statuses))
        trains = f"{len(page.statuses)} train{'s' * (len(page.statuses) != 1)}"
        needs = f"{needy} need{'s' * (needy == 1)} attention"
        line = Text(f"{trains} · {needs} · {(page.queue_at or page.at).astimezone():%H:%M:%S %Z}", "bold")
        if self.pattern:
            line += cell(f" · {shown} with {self.pattern!r}, Esc shows all")
        if not page.statuses:
            line += cell(f" · no trains below {self.app.feed.app.root}")
        return line

    def _fill(self, page: TrainsPage, statuses: list[TrainStatus]) -> None:
        table, train = self.table, self.train
        rows = [train_row(status, page.at) for status in statuses]
        table.clear(columns=True)
        if not rows:
            return
        widths = choose_columns(rows, self.size.width - OUTSIDE_WIDTH)
        table.add_column(" ", width=1)
        for name, width in widths.items():
            table.add_column(Text(name), width=width)
        for row, status in zip(rows, statuses, strict=True):
            styles = {"train": "bold", "state": STYLES.get(status.state, "")}
            cells = [cell(row[name], styles.get(name, "")) for name in widths]
            cells[-1].truncate(widths["now"], overflow="ellipsis")
            mark = Text("!", "bold red") if needs_attention(status) else Text(" ")
            table.add_row(mark, *cells, key=status.train)
        names = [status.train for status in statuses]
        table.move_cursor(row=names.index(train) if train in names else 0)

    def action_open(self) -> None:
        if self.train:
            self.app.push_screen(TrainScreen(self.train))

    def action_filter(self) -> None:
        self.app.push_screen(
            TextDialog("Show only trains whose name, state, reason or alert contains:", self.pattern), self._filter
        )

    def action_clear_filter(self) -> None:
        self._filter("")

    def _filter(self, text: str | None) -> None:
        if text is not None:
            self.pattern = text.strip()
            self.show_page(self.app.page)


def _searchable(status: TrainStatus) -> str:
    alerts = " ".join(alert.summary for alert in status.alerts)
    waits = " ".join(waiting.why for waiting in status.waiting or ())
    return f"{status.train} {status.state} {waits} {alerts}".casefold()


class TopApp(TrainsApp):
    """`opsctl top`. Uses the 16 colours of the terminal."""

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "top_app.tcss"

    def __init__(self, app: App, *, every_s: float) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.feed = TrainsFeed(app.as_viewer())
        self.every_s = every_s
        self.page = None
        self.is_reading = False

    def on_mount(self) -> None:
        self.push_screen(TrainsScreen())
        self.action_read_page()
        self.set_interval(self.every_s, self.action_read_page)

    def action_read_page(self) -> None:
        """Read a new snapshot, unless the current one is fresh or being read."""
        age_s = (self.feed.app.clock.now() - self.page.at).total_seconds() if self.page else MIN_AGE_S
        if not self.is_reading and not 0 <= age_s < MIN_AGE_S:
            self.is_reading = True
            self._read_page()

    @work(thread=True, group="page")
    def _read_page(self) -> None:
        page = self.feed.read()
        self.call_from_thread(self._show_page, page)

    def _show_page(self, page: TrainsPage) -> None:
        self.page, self.is_reading = page, False
        for screen in self.screen_stack:
            if isinstance(screen, (TrainsScreen, TrainScreen)):
                screen.show_page(page)

    def action_show_keys(self) -> None:
        self.push_screen(HelpDialog())

    def action_ask(self, name: str) -> None:
        """Ask whether to act on the train of the screen."""
        screen = self.screen
        train = screen.train if isinstance(screen, (TrainsScreen, TrainScreen)) else ""
        status = self.page.find(train) if self.page else None
        if status is None:
            return
        action = load_actions()[name]
        target = action.find_target(status)
        if not target:
            self.notify(action.missing, severity="warning", markup=False)
            return

        def act(reason: str | None) -> None:
            if reason is not None:
                self._act([word.format(target=target, reason=reason) for word in action.command])

        question = action.question.format(cell(target).plain)
        self.push_screen(ConfirmDialog(question, needs_reason=action.needs_reason), act)

    @work(thread=True, group="action")
    def _act(self, words: list[str]) -> None:
        has_worked, text = self.feed.run(words)
        self.call_from_thread(
            self.notify,
            text,
            severity="information" if has_worked else "error",
            timeout=DONE_S if has_worked else FAILED_S,
            markup=False,
        )
        self.call_from_thread(self._show_page, self.feed.read())
