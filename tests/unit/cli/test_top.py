"""The screens of `opsctl top`, driven by textual's pilot on prepared snapshots."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("textual")

from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from opsctl.app import build
from opsctl.base.errors import InputError
from opsctl.cli import cli
from opsctl.cli.top.dialogs import ConfirmDialog, HelpDialog
from opsctl.cli.top.top_app import TopApp, TrainsScreen
from opsctl.cli.top.train_screen import TextPane, TrainScreen
from opsctl.cli.top.trains_feed import TrainsFeed, TrainsPage
from opsctl.state.run_dir import RunDir
from tests.support.clocks import FakeClock
from tests.unit.cli.test_status_pages import make_alert, make_status

HOSTILE = "[b]evil[/b] \x1b[2J\u202e[@click=app.quit]x[/]"


@dataclass(frozen=True)
class PreparedFeed(TrainsFeed):
    """Returns the next of some pages, and records the commands."""

    pages: list[TrainsPage] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)

    def read(self) -> TrainsPage:
        self.reads.append(1)
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]

    def run(self, words: Sequence[str]) -> tuple[bool, str]:
        self.commands.append(list(words))
        return True, f"done: {HOSTILE}"


def make_page(*names: str) -> TrainsPage:
    statuses = [make_status(name) for name in names]
    alerts = (make_alert(train="tr02", summary=HOSTILE),)
    statuses = [replace(status, alerts=alerts) if status.train == "tr02" else status for status in statuses]
    return TrainsPage(at=datetime.now(UTC), statuses=tuple(statuses), alerts=alerts)


def drive(
    tmp_path: Path,
    use: Callable[[Pilot[None], PreparedFeed], Awaitable[None]],
    *pages: TrainsPage,
    size: Any = (80, 24),
) -> None:
    site = tmp_path / "site.toml"
    site.write_text(f'root = "{tmp_path}/trains"\ntrust_parents = true\n')
    prepared = list(pages) or [make_page(*(f"tr{n:02d}" for n in range(12)))]
    # A page stays fresh on a slow machine too.
    feed = PreparedFeed(replace(build(site), clock=FakeClock(max(page.at for page in prepared))), prepared)
    app = TopApp(feed.app, every_s=3600)
    app.feed = feed

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await settle(pilot)
            await use(pilot, feed)

    asyncio.run(run())


async def settle(pilot: Pilot[None]) -> None:
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


def train_of(pilot: Pilot[None]) -> str:
    screen = pilot.app.screen
    assert isinstance(screen, TrainsScreen)
    return screen.train


def test_keys_move_open_and_filter(tmp_path: Path) -> None:
    async def use(pilot: Pilot[None], _feed: PreparedFeed) -> None:
        await pilot.press("j", "j", "k", "down")
        assert train_of(pilot) == "tr02"
        await pilot.press("G")
        assert train_of(pilot) == "tr11"
        await pilot.press("g", "enter")
        assert isinstance(pilot.app.screen, TrainScreen)
        assert pilot.app.screen.train == "tr00"
        await pilot.press("escape")
        assert isinstance(pilot.app.screen, TrainsScreen)
        for key in ("question_mark", "f1"):
            await pilot.press(key)
            assert isinstance(pilot.app.screen, HelpDialog)
            await pilot.press("escape")
        await pilot.press("slash", *"tr1", "enter")
        assert pilot.app.screen.query_one(DataTable).row_count == 2
        await pilot.press("escape")
        assert pilot.app.screen.query_one(DataTable).row_count == 12
        await pilot.press("q")
        assert pilot.app.return_code == 0

    drive(tmp_path, use, size=(40, 10))


def test_refresh_is_rare_and_keeps_the_cursor(tmp_path: Path) -> None:
    later = make_page("aa", "ab", "tr00", "tr01")

    async def use(pilot: Pilot[None], feed: PreparedFeed) -> None:
        await pilot.press("f5", "f5", "ctrl+r", "j")
        await settle(pilot)
        assert len(feed.reads) == 1  # the first page is fresh
        assert train_of(pilot) == "tr01"
        pilot.app._show_page(feed.read())  # type: ignore[attr-defined]  # of TopApp
        await pilot.pause()
        assert train_of(pilot) == "tr01"

    drive(tmp_path, use, make_page("tr00", "tr01"), later)


def test_action_needs_a_confirmed_reason(tmp_path: Path) -> None:
    async def use(pilot: Pilot[None], feed: PreparedFeed) -> None:
        await pilot.press("h")
        assert isinstance(pilot.app.screen, ConfirmDialog)
        await pilot.press("enter", "escape")
        await pilot.press("h", *"-bad", "enter")
        await settle(pilot)
        await pilot.press("r", "n", "r", "enter", "escape", "r", "y")
        await settle(pilot)
        assert feed.commands == [["hold", "--reason=-bad", "--", "tr00"], ["release", "--", "tr00"]]

    drive(tmp_path, use)


def test_alert_with_hostile_text_is_acknowledged(tmp_path: Path) -> None:
    async def use(pilot: Pilot[None], feed: PreparedFeed) -> None:
        shown = str(pilot.app.screen.query_one("#alerts", Static).render())
        assert "\x1b" not in shown
        await pilot.press("a")
        assert isinstance(pilot.app.screen, TrainsScreen)  # tr00 has no alert
        await pilot.press("j", "j", "a", *"me", "enter")
        await settle(pilot)
        assert feed.commands == [["alerts", "ack", "--reason=me", "--", "hang/tr02"]]
        await pilot.press("enter", "3")
        await settle(pilot)
        lines = [strip.text.strip() for strip in pilot.app.screen.query_one("#why", TextPane).lines]
        assert any("done: [b]evil[/b]" in line for line in lines)

    drive(tmp_path, use)


def test_log_can_be_searched(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "trains" / "tr00")
    run.create()
    run.config.write_text("")
    run.main_log.write_text("".join(f"line {n}{' ERROR' if n % 100 == 50 else ''}\n" for n in range(250)))

    async def use(pilot: Pilot[None], _feed: PreparedFeed) -> None:
        await pilot.press("enter", "tab")
        await settle(pilot)
        await pilot.press("slash", *"err", "enter", "n")
        await pilot.pause()
        message = str(pilot.app.screen.query_one("#message", Static).render())
        assert message == "2 of 2: line 150 ERROR"
        with run.main_log.open("a") as log:
            log.write("a new line\n")
        pilot.app.screen.follow()  # type: ignore[attr-defined]  # of TrainScreen
        await settle(pilot)
        pane = pilot.app.screen.query_one("#log", TextPane)
        assert pane.lines[-1].text.strip() == "a new line"
        assert pane.scroll_offset.y == 150, "the match stays in view while the log grows"
        await pilot.press("G")
        await settle(pilot)
        with run.main_log.open("a") as log:
            log.write("more\n" * 40)
        pilot.app.screen.follow()  # type: ignore[attr-defined]  # of TrainScreen
        await settle(pilot)
        assert pane.scroll_offset.y == pane.max_scroll_y > 230, "at its end the log is followed"
        await pilot.press("slash", *"absent", "enter")
        await pilot.pause()
        assert "'absent' does not occur" in str(pilot.app.screen.query_one("#message", Static).render())

    drive(tmp_path, use)


def test_empty_root_and_broken_site_are_shown(tmp_path: Path) -> None:
    empty, broken = TrainsPage(at=datetime.now(UTC)), TrainsPage(at=datetime.now(UTC), problem="the root is gone")

    async def use(pilot: Pilot[None], feed: PreparedFeed) -> None:
        assert "no trains below" in str(pilot.app.screen.query_one("#headline", Static).render())
        await pilot.press("enter", "h")
        pilot.app._show_page(feed.read())  # type: ignore[attr-defined]  # of TopApp
        await pilot.pause()
        assert "the root is gone" in str(pilot.app.screen.query_one("#headline", Static).render())

    drive(tmp_path, use, empty, broken)


def test_top_needs_a_terminal() -> None:
    result = CliRunner().invoke(cli, ["top"], standalone_mode=False)
    assert isinstance(result.exception, InputError)
    assert result.exception.hint == "opsctl status --watch prints page after page"
