"""`opsctl dash` in a real browser: phone, desk and wall, actions with and without rights, hostile text."""

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.app import App
from opsctl.base.errors import InputError
from opsctl.base.findings import Severity
from opsctl.base.model import Node
from opsctl.dash.page_access import Role
from opsctl.dash.pages import render_files
from opsctl.dash.refresher import SOON_S
from opsctl.dash.steering import VERBS, PageAnswer, PageInstruction, PageVerb
from opsctl.guard.attempt_record import Start
from opsctl.host.system import SystemClock
from opsctl.state.events import AttemptFinalized, AttemptStarted, Held
from opsctl.state.journal import Journal
from opsctl.state.reasons import as_written
from opsctl.state.switches import Switch, arm, path_of
from tests.hostile.test_outputs import FORBIDDEN, PAYLOADS
from tests.support.cases import read_table
from tests.support.chromium import PROGRAM, Browser
from tests.support.dash_site import DashSite, Visitor, make_alerted_site, make_site, serving
from tests.support.dash_visits import LOW_CONTRAST, SIZES, enter, find_problems
from tests.support.findings import make_finding
from tests.support.made_events import make_diagnosed

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium: apt-get install chromium")

XSS = read_table(__file__, "xss")
HOSTILE = " ".join((*XSS, *(text for name, text in PAYLOADS.items() if name not in {"long line", "lone surrogate"})))
CUT_OFF = """[...document.querySelectorAll(
  'h1, h2, .text, .word, .badge, .figure b, .figure small, button')].filter(e => {
  const b = e.getBoundingClientRect();
  return b.width && (b.left < 0 || b.right > innerWidth + 0.5);
}).map(e => e.textContent)"""
DELAY_THE_END_OF_THE_LOG = (Path(__file__).parent / "delay_the_end_of_the_log.js").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashSite]:
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("dash")
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        yield make_alerted_site(place)


@pytest.fixture(scope="module")
def visitor(site: DashSite) -> Iterator[Visitor]:
    with serving(site, acts=True, every_s=SOON_S) as visitor:
        yield visitor


VIEWS = [("phone", "/"), ("desk", "/"), ("wall", "/?wall"), ("phone", "/train/tr11"), ("desk", "/train/tr11")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("size", "path"), VIEWS, ids=lambda value: value.replace("/", ""))
def test_page_fits_and_is_legible(chromium: Browser, visitor: Visitor, size: str, path: str, scheme: str) -> None:
    enter(chromium, visitor, Role.ACT, path, size=size, scheme=scheme)
    chromium.wait_for("document.querySelector('#fresh').textContent.includes('old')")
    if size == "phone":
        badge = "document.querySelector('.badge')"
        chromium.evaluate(f"{badge} && ({badge}.textContent = '▲ needs a decision')")  # the longest
    assert find_problems(chromium) == []
    assert "token" not in chromium.evaluate("location.href")
    assert chromium.evaluate("document.documentElement.scrollWidth") == SIZES[size][0]
    assert chromium.evaluate(CUT_OFF) == []
    assert chromium.evaluate(LOW_CONTRAST) == []
    here = f"http://localhost:{visitor.port}/"
    assert [url for url in chromium.requests() if not url.startswith((here, "data:"))] == []


def test_phone_shows_the_worst_train_first(chromium: Browser, visitor: Visitor) -> None:
    enter(chromium, visitor, Role.VIEW)
    assert "No step for 31 min" in chromium.evaluate("document.querySelector('.train').innerText")
    assert chromium.evaluate("document.querySelector('.train .text').getBoundingClientRect().bottom") < 844 / 3
    assert chromium.evaluate("document.querySelectorAll('button[data-verb]').length") == 0


def test_link_with_more_rights_is_followed(chromium: Browser, visitor: Visitor) -> None:
    enter(chromium, visitor, Role.VIEW)
    token = visitor.server.access.token(Role.ACT)
    chromium.evaluate(f"location.hash = 'token={token}'")  # as a click on the other link does
    chromium.wait_for("document.querySelector('button[data-verb]')")
    assert "token" not in chromium.evaluate("location.href")


def test_curves_are_drawn_and_zoomed(chromium: Browser, visitor: Visitor) -> None:
    enter(chromium, visitor, Role.VIEW, "/train/tr11", size="desk")
    chromium.wait_for("document.querySelectorAll('.u-wrap').length === 2")
    chromium.evaluate("document.querySelector('[data-range=recent]').click()")
    chromium.wait_for("document.querySelector('#log').innerText.includes('iteration 300/')")


def press(chromium: Browser, verb: str, train: str) -> None:
    chromium.evaluate(f"document.querySelector('.train button[data-verb={verb}][data-train={train}]').click()")
    chromium.wait_for("document.querySelector('#act').open && !document.querySelector('#act-go').disabled")


def test_save_is_done_and_shown_live(chromium: Browser, visitor: Visitor, site: DashSite) -> None:
    enter(chromium, visitor, Role.ACT)
    press(chromium, "save", "tr12")
    chromium.evaluate("document.querySelector('#act-reason').value = 'before noon'")
    chromium.evaluate("document.querySelector('#act-go').click()")
    chromium.wait_for("document.querySelector('#act-text').textContent.includes('save switch is armed')")
    chromium.wait_for("document.querySelector('#trains').innerText.includes('before noon')")
    path_of(site.run("tr12"), Switch.SAVE).unlink()


def test_hold_shows_its_plan_before(chromium: Browser, visitor: Visitor, site: DashSite) -> None:
    enter(chromium, visitor, Role.ACT, size="desk")
    press(chromium, "hold", "tr12")
    assert chromium.evaluate("document.querySelector('#act-text').textContent").startswith(
        "would hold array 2. No further"
    )
    chromium.evaluate("document.querySelector('#act-cancel').click()")
    assert site.slurm.held == []


def test_rollback_is_confirmed_twice(chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[PageInstruction] = []

    def act(_: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
        if instruction.number is None:
            raise InputError("tr11: --to must name the step; checkpoints exist of steps 100")
        if dry_run:
            return PageAnswer(text="would go back to step 100\ncheckpoint: global_step100", number=100)
        started.append(instruction)
        return PageAnswer(text="the rollback to step 100 has started")

    monkeypatch.setitem(dict_of_verbs(), "rollback", replace(VERBS["rollback"], act=act))
    site = make_site(tmp_path)
    checkpoint = site.run("tr11").checkpoints / "global_step100"
    checkpoint.mkdir()
    (checkpoint / "mp_rank_00_model_states.pt").write_text("weights")
    (checkpoint.parent / "latest").write_text(checkpoint.name)
    with serving(site, acts=True) as visitor:
        enter(chromium, visitor, Role.ACT)
        chromium.evaluate("document.querySelector('button[data-verb=rollback][data-train=tr11]').click()")
        chromium.wait_for("document.querySelector('#act-text').textContent.includes('must name the step')")
        assert chromium.evaluate("document.querySelector('#act-go').textContent") == "Show the plan"
        chromium.evaluate("document.querySelector('#act-number').value = 100")
        chromium.evaluate("document.querySelector('#act-go').click()")
        chromium.wait_for("document.querySelector('#act-text').textContent.includes('would go back to step 100')")
        for label in ("Rollback", "Yes: rollback, tr11"):
            chromium.wait_for("!document.querySelector('#act-go').disabled")
            assert chromium.evaluate("document.querySelector('#act-go').textContent") == label
            assert started == []
            chromium.evaluate("document.querySelector('#act-go').click()")
        chromium.wait_for("document.querySelector('#act-text').textContent.includes('has started')")
        assert [(instruction.number, instruction.confirmed) for instruction in started] == [(100, True)]
        assert all("409" in problem for problem in find_problems(chromium))  # the refused plan


def test_late_plan_does_not_reach_another_dialog(
    chromium: Browser, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    def plan(_: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
        assert dry_run
        if instruction.train == "tr11":
            answer.wait(250)
        return PageAnswer(text=f"the plan of {instruction.train}", number=7)

    monkeypatch.setitem(dict_of_verbs(), "hold", replace(VERBS["hold"], act=plan))
    enter(chromium, visitor, Role.ACT)
    chromium.evaluate("document.querySelector('.train button[data-verb=hold][data-train=tr11]').click()")
    chromium.evaluate("document.querySelector('#act-cancel').click()")
    press(chromium, "hold", "tr12")
    chromium.evaluate("document.querySelector('#act-number').value = 3")
    answer.set()
    chromium.evaluate("new Promise((done) => setTimeout(done, 1000))")
    assert chromium.evaluate("document.querySelector('#act-text').textContent").startswith("the plan of tr12")
    assert chromium.evaluate("document.querySelector('#act-number').value") == "3"


def test_lost_answer_is_called_unknown(chromium: Browser, visitor: Visitor) -> None:
    enter(chromium, visitor, Role.ACT)
    press(chromium, "save", "tr12")
    chromium.evaluate(
        "const send = window.fetch; void (window.fetch = (url, options) =>"
        " String(url).endsWith('/act') ? Promise.reject(new TypeError('gone')) : send(url, options))"
    )
    chromium.evaluate("document.querySelector('#act-go').click()")
    chromium.wait_for("document.querySelector('#act-text').textContent.includes('the result is unknown')")


def dict_of_verbs() -> dict[str, PageVerb]:
    assert isinstance(VERBS, dict)
    return VERBS


def test_refusal_is_shown(chromium: Browser, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: App, instruction: PageInstruction, *, dry_run: bool) -> PageAnswer:
        raise InputError(f"{instruction.train}: nothing is queued")

    monkeypatch.setitem(dict_of_verbs(), "hold", replace(VERBS["hold"], act=refuse))
    enter(chromium, visitor, Role.ACT)
    chromium.evaluate("document.querySelector('.train button[data-verb=hold][data-train=tr12]').click()")
    chromium.wait_for("document.querySelector('#act-text').textContent.includes('nothing is queued')")
    assert chromium.evaluate("document.querySelector('#act-go').disabled")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """A server whose every text is hostile: log, journal, alert, switch, node, comment, cron."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("hostile")
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        site = make_alerted_site(place)
        plant(site)
        with serving(site, acts=True) as visitor:
            yield visitor


def plant(site: DashSite) -> None:
    run = site.run("tr11")
    journal = Journal(run, site.app.clock)
    journal.append(AttemptStarted(attempt="1_2.0", nodes=HOSTILE))
    says = dict.fromkeys(("says", "cause", "cause_kind", "node", "advice"), HOSTILE)
    journal.append(make_diagnosed(attempt="1_2.0", rank=0, evidence=(HOSTILE,), **says))
    journal.append(AttemptFinalized(attempt="1_2.0", outcome="crashed", action="hold-queued", why=HOSTILE))
    journal.append(Held(jobs=("1",), reason=as_written(HOSTILE)))
    with run.main_log.open("a") as log:
        log.write(f"[n<b>:3]: {HOSTILE}\nRuntimeError: CUDA error: uncorrectable ECC error {XSS[0]}\n")
    arm(run, Switch.SAVE, why=HOSTILE)
    fields = {"train": "tr11", "evidence": (HOSTILE,)}
    site.app.alerting.ledger.record([make_finding(f"hang/tr11/{XSS[0]}", Severity.CRITICAL, HOSTILE, **fields)])
    site.app.alerting.ledger.ack("hang/tr11", HOSTILE)
    site.slurm.tiles.append(Node(name=f"n{XSS[1]}", state=f"DOWN{XSS[0]}", address="n", reason=HOSTILE))
    (site.app.root / XSS[0].replace("/", "")).mkdir()
    (site.app.root / XSS[0].replace("/", "") / "train.toml").touch()


@pytest.mark.attack("text runs as script on a page")
@pytest.mark.parametrize("path", ["/", "/?wall", "/train/tr11"])
def test_hostile_text_stays_text(chromium: Browser, hostile: Visitor, path: str) -> None:
    enter(chromium, hostile, Role.ACT, path, size="desk")
    if path == "/train/tr11":
        chromium.wait_for("document.querySelector('#curves')")
        chromium.evaluate("document.querySelector('#log-error').click()")
        chromium.wait_for("document.querySelector('#log-hit')")
    shown = chromium.evaluate("document.body.innerText")
    assert "<script>document.title='owned'</script>" in shown
    assert path == "/?wall" or "{{ 7 * 7 }}" in shown  # the wall shows the first words
    assert not set(shown) - {"\n", "\t"} & FORBIDDEN
    assert "owned" not in chromium.evaluate("document.title").partition("·")[0]
    assert chromium.evaluate("document.querySelectorAll('img, iframe, a[href^=javascript]').length") == 0
    assert (
        chromium.evaluate(
            "[...document.querySelectorAll('*')].some(e => e.getAttributeNames().some(name => name.startsWith('on')))"
        )
        is False
    )
    assert find_problems(chromium) == []


def test_static_pages_work_without_a_server(chromium: Browser, site: DashSite, tmp_path: Path) -> None:
    for name, text in render_files(site.app).items():
        (tmp_path / name).write_text(text)
    chromium.open((tmp_path / "train-tr11.html").as_uri(), size=SIZES["phone"])
    chromium.wait_for("document.querySelectorAll('.u-wrap').length === 2")
    assert chromium.read_console() == []
    assert chromium.evaluate("document.documentElement.scrollWidth") == 390
    chromium.open((tmp_path / "index.html").as_uri(), size=SIZES["desk"])
    assert chromium.read_console() == []
    assert chromium.evaluate("document.querySelectorAll('.train').length") == 2


def test_old_view_is_grey_under_a_banner(chromium: Browser, site: DashSite) -> None:
    with serving(site, every_s=3600) as visitor:
        enter(chromium, visitor, Role.VIEW)
        assert chromium.evaluate("document.querySelector('#stale').hidden")
        refresher = visitor.server.refresher
        assert refresher.view
        refresher.view = replace(refresher.view, made=refresher.view.made - timedelta(hours=2))
        refresher.version += 1
        chromium.wait_for("!document.querySelector('#stale').hidden")
        assert "Nothing below is current" in chromium.evaluate("document.querySelector('#stale').textContent")
        assert "grayscale(1)" in chromium.evaluate("getComputedStyle(document.querySelector('main')).filter")


def test_end_of_an_attempt_is_shown_from_its_row(chromium: Browser, tmp_path: Path) -> None:
    site = make_site(tmp_path)
    record_two_attempts(site)
    with serving(site) as visitor:
        enter(chromium, visitor, Role.VIEW, "/train/tr11", size="desk")
        chromium.wait_for("document.querySelector('.jump')")
        chromium.evaluate("document.querySelector('.jump').click()")
        chromium.wait_for("document.querySelector('#log-title').textContent.includes('the last 100 lines of job 1_1')")


def test_late_answer_does_not_replace_the_log_asked_for_last(chromium: Browser, tmp_path: Path) -> None:
    site = make_site(tmp_path)
    record_two_attempts(site)
    with serving(site) as visitor:
        enter(chromium, visitor, Role.VIEW, "/train/tr11", size="desk")
        chromium.wait_for("document.querySelector('.jump')")
        chromium.evaluate(DELAY_THE_END_OF_THE_LOG)
        chromium.evaluate("document.querySelector('#log-end').click()")
        chromium.evaluate("document.querySelector('.jump').click()")
        chromium.wait_for("window.lateAnswers === 1")
        assert chromium.evaluate("document.querySelector('#log-title').textContent") == "the last 100 lines of job 1_1"


def record_two_attempts(site: DashSite) -> None:
    """Let the log's first 100 lines belong to the attempt that has ended, the others to the one that runs."""
    run = site.run("tr11")
    Journal(run, SystemClock()).append(AttemptStarted(attempt="1_2.0", nodes="node001"))
    size = sum(map(len, run.main_log.read_bytes().splitlines(keepends=True)[:100]))
    now = SystemClock().now()
    for name, begin, at in (("1_1.0", 0, now - timedelta(minutes=1)), ("1_2.0", size, now)):
        start = Start(
            attempt=name,
            job="11",
            nodes="node001",
            node_count=1,
            gpus="",
            node="node001",
            at=at,
            checkpoint=0,
            main_log=begin,
        )
        run.make(run.attempt(name).path)
        run.attempt(name).start.write_text(json.dumps(asdict(start), default=str))
