"""The report's page in a real browser. `pytest tests/integration/browser`"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.guard.outcome import Outcome
from opsctl.report.html_page import render_page
from opsctl.report.train_report import report_train
from opsctl.state.journal import EventKind
from tests.support.chromium import Browser, browser
from tests.support.made_reports import BEGIN, Train, make_rough_train

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs a chromium")

WIDTHS = (400, 1400)
SCHEMES = ("light", "dark")
HOSTILE = (
    "</title><script>console.log('owned')</script><img src=http://127.0.0.1:9/x onerror=alert(1)> {{ 7 * 7 }} & \"'"
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM
    with browser(PROGRAM, tmp_path_factory.mktemp("chromium")) as found:
        yield found


def many_attempts(place: Path) -> Train:
    train = make_rough_train(place)
    train.submit(3400, tasks=40, array="8")
    at, step = 3500.0, 150
    for number in range(1, 31):
        train.start(at, f"8_{number}.0")
        at = train.steps(at + 60, step + 1, step + 40)
        step += 40 if number % 4 else 10
        train.end(at + 20, Outcome.DEADLINE if number % 4 else Outcome.CRASHED, HOSTILE)
        at += 200
    train.note(at, EventKind.HELD, jobs=["8"], why="enough")
    return train


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page")
    train = many_attempts(place)
    path = place / "report.html"
    path.write_text(render_page(train.report(27000)))
    return path


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_renders_without_complaint_and_asks_nobody_for_anything(
    chromium: Browser, page: Path, width: int, scheme: str, tmp_path: Path
) -> None:
    chromium.show(page, width=width, scheme=scheme)
    assert chromium.complaints() == []
    assert [url for url in chromium.requests() if not url.startswith("data:")] == [page.as_uri()]
    assert chromium.ask("innerWidth") == width
    assert chromium.ask("document.documentElement.scrollWidth") == width
    assert chromium.ask("document.querySelectorAll('svg').length") == 4 + 32
    assert len(chromium.picture(tmp_path / "page.png")) > 30_000


def test_dark_and_light_are_two_pages(chromium: Browser, page: Path, tmp_path: Path) -> None:
    colours = []
    for scheme in SCHEMES:
        chromium.show(page, width=1400, scheme=scheme)
        colours.append(chromium.ask("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(246, 247, 249)", "rgb(15, 20, 26)"]


LABELS = """[...document.querySelectorAll('.y, .x')].flatMap(axis => {
  const boxes = [...axis.children].map(e => e.getBoundingClientRect()).filter(b => b.width > 0);
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom).map(b => axis.textContent));
})"""
CUT_OFF = """[...document.querySelectorAll('.y span, .x span, h1, h2, dd, dt, .ratio')].filter(e => {
  const b = e.getBoundingClientRect();
  return b.width && (b.left < 0 || b.right > innerWidth);
}).map(e => e.textContent)"""


@pytest.mark.parametrize("width", [360, *WIDTHS])
def test_no_label_lies_upon_another_or_is_cut_off(chromium: Browser, page: Path, width: int) -> None:
    chromium.show(page, width=width, scheme="light")
    assert chromium.ask(LABELS) == []
    assert chromium.ask(CUT_OFF) == []
    assert chromium.ask("document.querySelectorAll('.x span').length") > 6


def test_every_colour_of_a_bar_is_in_the_legend_and_is_its_own(chromium: Browser, page: Path) -> None:
    chromium.show(page, width=1400, scheme="light")
    fills = chromium.ask("""Object.fromEntries([...document.querySelectorAll('.bar rect')].map(
        e => [e.getAttribute('class'), getComputedStyle(e).fill]))""")
    keys = chromium.ask("""Object.fromEntries([...document.querySelectorAll('.shares .key')].map(
        e => [e.className.replace('key ', ''), getComputedStyle(e).backgroundColor]))""")
    assert fills == keys
    assert len(set(fills.values())) == len(fills) >= 7
    assert "rgb(0, 0, 0)" not in fills.values()


def test_what_somebody_wrote_stays_text(chromium: Browser, page: Path) -> None:
    chromium.show(page, width=1400, scheme="light")
    assert HOSTILE in chromium.ask("[...document.querySelectorAll('svg.attempt title')].map(e => e.textContent).join()")
    assert chromium.ask("document.scripts.length + document.images.length") == 0


def test_a_train_that_did_no_step_has_a_page_too(chromium: Browser, tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    path = tmp_path / "report.html"
    report = report_train(train.run, train.journal.events(), BEGIN)
    path.write_text(render_page(report))  # not a second has passed
    chromium.show(path, width=400, scheme="dark")
    assert chromium.complaints() == []
    assert "no time has passed" in chromium.ask("document.body.innerText")
    path.write_text(render_page(train.report(3600)))
    chromium.show(path, width=400, scheme="dark")
    assert "queue" in chromium.ask("document.body.innerText")
