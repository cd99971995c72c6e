"""The report page in a real browser: `pytest tests/integration/browser`."""

from pathlib import Path

import pytest

from opsctl.guard.end_record import Outcome
from opsctl.report.html_page import render_page
from opsctl.report.train_report import read_train
from opsctl.state.events import Held
from opsctl.state.reasons import as_written
from tests.support.chromium import PROGRAM, Browser
from tests.support.made_reports import BEGIN, Train, make_rough_train

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium: apt-get install chromium")

WIDTHS = (400, 1400)
SCHEMES = ("light", "dark")
HOSTILE = (
    "</title><script>console.log('owned')</script><img src=http://127.0.0.1:9/x onerror=alert(1)> {{ 7 * 7 }} & \"'"
)


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
    train.note(at, Held(jobs=("8",), reason=as_written("enough")))
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
def test_page_renders_without_errors_or_requests(
    chromium: Browser, page: Path, width: int, scheme: str, tmp_path: Path
) -> None:
    chromium.show(page, width=width, scheme=scheme)
    assert chromium.read_console() == []
    assert [url for url in chromium.requests() if not url.startswith("data:")] == [page.as_uri()]
    assert chromium.evaluate("innerWidth") == width
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    curves = chromium.evaluate("document.querySelectorAll('[data-curve]').length")
    assert curves >= 2
    assert chromium.evaluate("document.querySelectorAll('svg').length") == 3 + curves + 32
    assert len(chromium.take_screenshot(tmp_path / "page.png")) > 30_000


def test_dark_and_light_are_two_pages(chromium: Browser, page: Path, tmp_path: Path) -> None:
    colours = []
    for scheme in SCHEMES:
        chromium.show(page, width=1400, scheme=scheme)
        colours.append(chromium.evaluate("getComputedStyle(document.body).backgroundColor"))
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
def test_no_label_overlaps_another_or_is_cut_off(chromium: Browser, page: Path, width: int) -> None:
    chromium.show(page, width=width, scheme="light")
    assert chromium.evaluate(LABELS) == []
    assert chromium.evaluate(CUT_OFF) == []
    assert chromium.evaluate("document.querySelectorAll('.x span').length") > 6


def test_every_bar_colour_is_unique_and_in_the_legend(chromium: Browser, page: Path) -> None:
    chromium.show(page, width=1400, scheme="light")
    fills = chromium.evaluate("""Object.fromEntries([...document.querySelectorAll('.bar rect')].map(
        e => [e.getAttribute('class'), getComputedStyle(e).fill]))""")
    keys = chromium.evaluate("""Object.fromEntries([...document.querySelectorAll('.shares .key')].map(
        e => [e.className.replace('key ', ''), getComputedStyle(e).backgroundColor]))""")
    assert fills == keys
    assert len(set(fills.values())) == len(fills) >= 7
    assert "rgb(0, 0, 0)" not in fills.values()


POINTER = (Path(__file__).parent / "pointer.js").read_text()


def test_curve_is_read_under_the_pointer(chromium: Browser, page: Path) -> None:
    chromium.show(page, width=1400, scheme="light")
    text, _, _ = chromium.evaluate(POINTER.replace("STEPS", "at('pointermove', 0.5);"))
    assert text.startswith("step ") and ": " in text
    left, _, _ = chromium.evaluate(POINTER.replace("STEPS", "at('pointerleave', 0.5);"))
    assert left == ""


def test_dragging_zooms_all_curves_and_a_double_click_ends_it(chromium: Browser, page: Path) -> None:
    chromium.show(page, width=1400, scheme="light")
    drag = "at('pointerdown', 0.25); at('pointermove', 0.5); at('pointerup', 0.5);"
    whole = chromium.evaluate(POINTER.replace("STEPS", ""))[2]
    _, axis, zoomed = chromium.evaluate(POINTER.replace("STEPS", drag))
    assert zoomed != whole
    begin, end = (int(label.replace(",", "")) for label in axis)
    assert 0 < begin < end
    assert chromium.evaluate("[...document.querySelectorAll('.x.zoomed')].every(axis => !axis.hidden)")
    chromium.evaluate(POINTER.replace("STEPS", "plot.dispatchEvent(new MouseEvent('dblclick'));"))
    assert chromium.evaluate("[...document.querySelectorAll('.x.zoomed')].every(axis => axis.hidden)")
    assert chromium.read_console() == []


def test_hostile_text_stays_text(chromium: Browser, page: Path) -> None:
    chromium.show(page, width=1400, scheme="light")
    assert HOSTILE in chromium.evaluate(
        "[...document.querySelectorAll('svg.attempt title')].map(e => e.textContent).join()"
    )
    assert chromium.evaluate("document.scripts.length") == 1
    assert chromium.evaluate("document.images.length") == 0


def test_train_without_steps_has_a_page(chromium: Browser, tmp_path: Path) -> None:
    train = Train(tmp_path)
    train.submit(0)
    path = tmp_path / "report.html"
    report = read_train(train.run, train.journal.events(), BEGIN).report
    path.write_text(render_page(report))  # no time has passed
    chromium.show(path, width=400, scheme="dark")
    assert chromium.read_console() == []
    assert "no time has passed" in chromium.evaluate("document.body.innerText")
    path.write_text(render_page(train.report(3600)))
    chromium.show(path, width=400, scheme="dark")
    assert "queue" in chromium.evaluate("document.body.innerText")
