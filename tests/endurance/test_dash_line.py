"""`opsctl dash` in a real browser over a bad line: lost updates, a broken stream, a second tab, a lost train."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.dash.page_access import Role
from opsctl.state.switches import Switch, arm
from tests.integration.browser.test_dash_page import PROGRAM, enter, press
from tests.support.chromium import Browser, browser
from tests.support.dash_site import DashSite, make_site, serving

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium: apt-get install chromium")

FAIL_TWICE = (Path(__file__).parent / "fail_twice.js").read_text()
COUNT_AT_ONCE = (Path(__file__).parent / "count_at_once.js").read_text()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM
    with browser(PROGRAM, tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DashSite:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return make_site(tmp_path)


def test_failed_update_is_tried_again(chromium: Browser, site: DashSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.dash.web_app.QUIET_S", 1.0)
    with serving(site) as visitor:
        enter(chromium, visitor, Role.VIEW)
        chromium.evaluate(FAIL_TWICE)
        arm(site.run("tr12"), Switch.SAVE, why="before noon")
        visitor.server.refresher.refresh()
        chromium.wait_for("window.failures > 2")
        chromium.wait_for("document.body.innerText.includes('before noon')")


def test_slow_updates_never_overtake_each_other(chromium: Browser, site: DashSite) -> None:
    with serving(site) as visitor:
        enter(chromium, visitor, Role.VIEW)
        chromium.evaluate(COUNT_AT_ONCE)
        for reason in ("first", "second"):
            arm(site.run("tr12"), Switch.SAVE if reason == "first" else Switch.PAUSE, why=reason)
            visitor.server.refresher.refresh()
            chromium.wait_for("window.atOnce === 1 || window.ended > 0")
        chromium.wait_for("document.body.innerText.includes('second')")
        assert chromium.evaluate("window.most") == 1


def test_removed_train_is_called_gone(chromium: Browser, site: DashSite) -> None:
    with serving(site) as visitor:
        enter(chromium, visitor, Role.VIEW, "/train/tr12")
        shutil.rmtree(site.run("tr12").path)
        visitor.server.refresher.refresh()
        chromium.wait_for("document.querySelector('#stale').textContent.startsWith('This train is gone')")
        assert chromium.evaluate("document.body.classList.contains('stale-page')")


def test_broken_stream_is_opened_again(chromium: Browser, site: DashSite) -> None:
    with serving(site) as visitor, pytest.MonkeyPatch.context() as patch:
        patch.setattr("opsctl.dash.web_app.MAX_STREAMS", 0)  # the browser gets an answer that is no stream
        enter(chromium, visitor, Role.VIEW)
        refused = "performance.getEntriesByType('resource').some((entry) => entry.name.endsWith('/events'))"
        chromium.wait_for(refused)
        patch.undo()
        chromium.wait_for("document.querySelector('#fresh').textContent.includes('data')")


def test_link_opened_in_another_tab_ends_no_action(chromium: Browser, site: DashSite) -> None:
    with serving(site, acts=True) as visitor:
        enter(chromium, visitor, Role.ACT)
        token = visitor.server.access.token(Role.ACT)
        for _ in range(2):
            press(chromium, "save", "tr12")
            chromium.evaluate("document.querySelector('#act-go').click()")
            chromium.wait_for("document.querySelector('#act-text').textContent.includes('armed')")
            chromium.evaluate("document.querySelector('#act').close()")
            chromium.evaluate(
                f"fetch('/session', {{ method: 'POST', body: '{token}' }}).then((answer) => answer.text())"
            )
