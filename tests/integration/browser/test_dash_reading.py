"""`opsctl dash` at night: on a telephone, when stale, by keys, by a screen reader, without JavaScript."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from opsctl.base.findings import Severity
from opsctl.base.model import JobState
from opsctl.base.statements import state
from opsctl.dash.page_access import Role
from opsctl.host.system import SystemClock
from opsctl.state.events import AttemptFinalized, AttemptStarted, Held
from opsctl.state.journal import Journal
from opsctl.state.reasons import NeededChange, Reason, ReasonKind
from tests.support.cases import read_table
from tests.support.chromium import PROGRAM, Browser
from tests.support.dash_site import DashSite, Visitor, make_site, serving
from tests.support.dash_visits import LOW_CONTRAST, SIZES, enter, find_problems
from tests.support.findings import make_finding
from tests.support.made_events import make_diagnosed

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium: apt-get install chromium")
CHARTS = "document.querySelectorAll('.u-wrap').length === 2"
NOTE = "document.querySelector('#mark-note').textContent"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashSite]:
    """Four trains, of which opsctl holds the first after an error in the code."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("held")
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        site = make_site(place, ("tr11", "tr12", "llama-7b", "ablation"))
        hold(site)
        yield site


def hold(site: DashSite) -> None:
    journal = Journal(site.run("tr11"), SystemClock())
    reason = Reason(kind=ReasonKind.CRASH_LOOP, change=NeededChange.CODE, step=300, count=2)
    journal.append(AttemptStarted(attempt="1_2.0", nodes="node001"))
    journal.append(make_diagnosed(attempt="1_2.0", rank=0, **read_table(__file__, "diagnosis")))
    end = {"outcome": "crashed", "action": "hold-queued", "why": "exit code 1"}
    journal.append(AttemptFinalized(attempt="1_2.0", **end, reason=reason))
    journal.append(Held(jobs=("1",), reason=reason))
    rows = [row for row in site.slurm.rows if row.array != "1" or row.state is not JobState.RUNNING]
    site.slurm.rows = [replace(row, reason="JobHeldUser") if row.array == "1" else row for row in rows]
    finding = make_finding(key="failures/tr11/1_2.0", severity=Severity.CRITICAL, train="tr11", is_certain=True)
    says = state("failures.held", train="tr11", waiting=3, attempt="1_2.0", cause="KeyError: 'image'")
    site.app.alerting.ledger.record([replace(finding, says=says)])


@pytest.fixture(scope="module")
def visitor(site: DashSite) -> Iterator[Visitor]:
    with serving(site, acts=True) as visitor:
        yield visitor


def find_places(chromium: Browser, selectors: list[str]) -> list[float]:
    """Return the lower edge of the first element of each selector within the first train."""
    found = ".map(e => document.querySelector(`.train ${e}, .head ${e}`).getBoundingClientRect().bottom)"
    places: list[float] = chromium.evaluate(f"{selectors}{found}")
    return places


@pytest.mark.parametrize("path", ["/", "/train/tr11"])
def test_phone_shows_cause_evidence_fix_and_ack_on_the_first_screen(
    chromium: Browser, visitor: Visitor, path: str
) -> None:
    enter(chromium, visitor, Role.ACT, path)
    places = find_places(chromium, [".text", ".proof", ".command", "[data-verb=release]", "[data-verb=ack]", ".why"])
    assert places == sorted(places)
    assert places[-1] < SIZES["phone"][1]
    assert chromium.evaluate("document.documentElement.scrollHeight") < read_table(__file__, "heights")[path]


def test_desk_leaves_no_headline_narrow(chromium: Browser, visitor: Visitor) -> None:
    enter(chromium, visitor, Role.ACT, size="desk")
    wide, row = chromium.evaluate(
        "['.says', ''].map(e => document.querySelector(`.train ${e}`).getBoundingClientRect().width)"
    )
    assert wide > row / 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/train/tr11"])
def test_stale_page_is_legible(chromium: Browser, site: DashSite, path: str, scheme: str) -> None:
    with serving(site, acts=True) as visitor:
        enter(chromium, visitor, Role.ACT, path, scheme=scheme)
        refresher = visitor.server.refresher
        assert refresher.view
        refresher.view = replace(refresher.view, made=refresher.view.made - timedelta(hours=2))
        refresher.version += 1
        chromium.wait_for("document.body.classList.contains('stale-page')")
        chromium.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
        assert chromium.evaluate(LOW_CONTRAST) == []


def test_curves_take_a_scale_a_mean_and_another_train(chromium: Browser, visitor: Visitor) -> None:
    enter(chromium, visitor, Role.VIEW, "/train/tr11", size="desk")
    chromium.wait_for(CHARTS)
    for button in ("#curve-log", "#curve-smooth"):
        pressed = f"document.querySelector('{button}').ariaPressed"
        before = chromium.evaluate(pressed)
        chromium.evaluate(f"document.querySelector('{button}').click()")
        assert chromium.evaluate(pressed) != before
    assert "smoothed" in chromium.evaluate("document.querySelector('#chart-loss').innerText")
    chromium.evaluate(
        "(e => { e.value = 'tr12'; e.dispatchEvent(new Event('change')); })(document.querySelector('#curve-other'))"
    )
    chromium.wait_for("document.querySelector('#compare-note').textContent === 'tr12 is the dashed line.'")
    assert "tr12" in chromium.evaluate("document.querySelector('#chart-loss').innerText")
    assert chromium.evaluate("document.querySelectorAll('#curve-table tr').length") > 20
    assert find_problems(chromium) == []


def press_key(chromium: Browser, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        chromium.call("Input.dispatchKeyEvent", type=kind, key=key)


def test_keys_read_the_values_of_a_curve(chromium: Browser, visitor: Visitor) -> None:
    enter(chromium, visitor, Role.VIEW, "/train/tr11", size="desk")
    chromium.wait_for(CHARTS)
    chromium.evaluate("document.querySelector('#chart-loss').focus()")
    read = []
    for key in ("End", "ArrowLeft", "Home"):
        press_key(chromium, key)
        read.append(chromium.evaluate(NOTE).partition(",")[0])
    assert read == ["step 300: loss 2.03333", "step 299: loss 2.03344", "step 1: loss 12"]


@pytest.mark.parametrize("path", ["/", "/?wall", "/train/tr11"])
def test_screen_reader_names_every_control_and_picture(chromium: Browser, visitor: Visitor, path: str) -> None:
    enter(chromium, visitor, Role.ACT, path, size="desk")
    tree: list[dict[str, Any]] = chromium.call("Accessibility.getFullAXTree")["nodes"]
    shown = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]
    named = set(read_table(__file__, "named_roles"))
    assert [role for role, name in shown if role in named and not name.strip()] == []
    assert {"main", "heading"} <= {role for role, _ in shown}
    levels = chromium.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))")
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = chromium.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_page_is_read_without_javascript(chromium: Browser, visitor: Visitor) -> None:
    enter(chromium, visitor, Role.VIEW)  # for the cookie
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(f"http://localhost:{visitor.port}/train/tr11", size=SIZES["phone"])
        tree = chromium.call("Accessibility.getFullAXTree")["nodes"]
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    text = " ".join(str(node.get("name", {}).get("value", "")) for node in tree)
    assert "Without JavaScript this page can be read" in text
    assert "Before the release, change the code or the settings." in text
    assert "The end of the log" in text


def test_form_opens_the_pages_without_javascript(visitor: Visitor) -> None:
    token = visitor.server.access.token(Role.VIEW)
    form = {"Content_Type": "application/x-www-form-urlencoded", "Origin": f"http://localhost:{visitor.port}"}
    for body in (f"token={token}", f"token=http%3A%2F%2F127.0.0.1%3A1%2F%23token%3D{token}"):
        status, _, answer = replace(visitor, cookie="").ask("/session", method="POST", body=body, **form)
        assert (status, answer.getheader("Location")) == (303, "/")
        cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]
        assert replace(visitor, cookie=cookie).ask("/")[0] == 200
    assert replace(visitor, cookie="").ask("/session", method="POST", body="token=x", **form)[0] == 401
