"""The server of the pages over real HTTP: sessions, Host and Origin, actions, events, and one view for all."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection

import pytest

from opsctl.base.errors import NotAllowed
from opsctl.dash.page_access import Role
from opsctl.state.events import AttemptFinalized, AttemptStarted, Held
from opsctl.state.journal import Journal
from opsctl.state.reasons import NeededChange, Reason, ReasonKind
from opsctl.state.switches import Switch, read
from tests.support.cases import read_cases
from tests.support.dash_site import DashSite, Visitor, make_alerted_site, serving


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """A server for the tests that change nothing."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("shared")
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        with serving(make_alerted_site(place)) as visitor:
            yield visitor


@pytest.fixture
def visitor(shared: Visitor) -> Visitor:
    """A visitor of the shared server, without a cookie."""
    return replace(shared)


@pytest.fixture
def own(site: DashSite) -> Iterator[Visitor]:
    """A visitor of a server for this test alone."""
    with serving(site) as visitor:
        yield visitor


@pytest.fixture
def actor(site: DashSite) -> Iterator[Visitor]:
    with serving(site, acts=True) as visitor:
        yield visitor.enter(Role.ACT)


PAGES = ["/", "/?wall", "/train/tr11", "/train/tr11/log", "/events", "/session"]


@pytest.mark.parametrize("path", PAGES)
def test_page_without_session_is_refused(visitor: Visitor, path: str) -> None:
    status, text, _ = visitor.ask(path)
    assert status == 401
    assert "tr11" not in text.replace(path, "")


@pytest.mark.parametrize("path", ["/", "/?wall", "/train/tr11"])
def test_page_shows_the_train_and_its_alert(visitor: Visitor, path: str) -> None:
    status, text, _ = visitor.enter(Role.VIEW).ask(path)
    assert status == 200
    assert "tr11" in text
    assert "No step for 31 min" in text


def test_cookie_is_closed_to_scripts_and_other_sites(visitor: Visitor) -> None:
    _, _, answer = visitor.ask("/session", method="POST", body=visitor.server.access.token(Role.VIEW))
    cookie = (answer.getheader("Set-Cookie") or "").lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


@pytest.mark.parametrize("token", ["", "x", "é" * 50, "x" * 10_000])
def test_wrong_token_opens_no_session(visitor: Visitor, token: str) -> None:
    status, _, answer = visitor.ask("/session", method="POST", body=token)
    assert status == 401
    assert answer.getheader("Set-Cookie") is None


def test_changed_cookie_is_refused(visitor: Visitor) -> None:
    visitor.enter(Role.VIEW)
    name, _, value = visitor.cookie.partition("=")
    for changed in (value.replace("view", "act"), value[:-1], f"x{value}", "", "a.b.c.d", value.split(".")[0]):
        visitor.cookie = f"{name}={changed}"
        assert visitor.ask("/")[0] == 401


def test_cookie_ends_with_a_new_secret(site: DashSite, own: Visitor) -> None:
    cookie = own.enter(Role.VIEW).cookie
    object.__setattr__(own.server.access, "secret", b"t" * 32)
    own.cookie = cookie
    assert own.ask("/")[0] == 401


@pytest.mark.parametrize("host", ["evil.example.org", "localhost.evil.example.org", "127.0.0.1.nip.io", "", "[::1"])
def test_unknown_host_is_refused(visitor: Visitor, host: str) -> None:
    visitor.enter(Role.VIEW).host = host
    assert visitor.ask("/")[0] == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "ood.example.org", "OOD.example.org"])
def test_known_host_is_served(visitor: Visitor, host: str) -> None:
    visitor.enter(Role.VIEW).host = host
    assert visitor.ask("/")[0] == 200


def test_second_host_header_is_refused(visitor: Visitor) -> None:
    connection = HTTPConnection("127.0.0.1", visitor.port)
    connection.putrequest("GET", "/", skip_host=True)
    connection.putheader("Host", "localhost")
    connection.putheader("Host", "evil.example.org")
    connection.endheaders()
    assert connection.getresponse().status in {400, 421}
    connection.close()


def test_policy_allows_only_the_scripts_of_the_page(visitor: Visitor) -> None:
    _, text, answer = visitor.enter(Role.VIEW).ask("/train/tr11")
    policy = answer.getheader("Content-Security-Policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert not re.search(r"\son\w+=|\sstyle=|https?://(?!www\.w3\.org|github\.com/leeoniya)", text)


# --- actions


def act(visitor: Visitor, csrf: str | None = None, **fields: object) -> tuple[int, dict[str, object]]:
    """Send an instruction with the session's CSRF token, or with another."""
    if csrf is None:
        csrf = json.loads(visitor.ask("/session")[1])["csrf"]
    status, text, _ = visitor.ask("/act", method="POST", body=json.dumps(fields), X_CSRF_Token=csrf)
    return status, json.loads(text)


def own_csrf(visitor: Visitor) -> str:
    """Return the CSRF token that belongs to the cookie, which the server gives only to those who may act."""
    return visitor.server.access.csrf_token(visitor.cookie.partition("=")[2])


def test_viewer_cannot_act(site: DashSite) -> None:
    with serving(site, acts=True) as visitor:
        visitor.enter(Role.VIEW)
        assert act(visitor, own_csrf(visitor), verb="ack", train="tr11", key="hang/tr11")[0] == 403
        assert "<button" not in visitor.ask("/")[1].partition("<script")[0]
    assert site.app.alerting.ledger.find("hang/tr11").acknowledged is None


def test_token_to_act_opens_nothing_without_actions(visitor: Visitor) -> None:
    token = visitor.server.access.token(Role.ACT)
    assert visitor.ask("/session", method="POST", body=token)[0] == 401


def test_cookie_to_act_only_shows_without_actions(site: DashSite) -> None:
    with serving(site, acts=True) as visitor:
        cookie = visitor.enter(Role.ACT).cookie
    with serving(site) as visitor:
        visitor.cookie = cookie
        assert visitor.ask("/")[0] == 200
        assert act(visitor, own_csrf(visitor), verb="ack", train="tr11", key="hang/tr11")[0] == 403


@pytest.mark.parametrize("csrf", ["", "x", "é"])
def test_action_without_csrf_token_is_refused(site: DashSite, actor: Visitor, csrf: str) -> None:
    assert act(actor, csrf.encode().decode("latin-1"), verb="ack", train="tr11", key="hang/tr11")[0] == 403
    assert site.app.alerting.ledger.find("hang/tr11").acknowledged is None


def test_csrf_token_of_another_session_is_refused(actor: Visitor) -> None:
    other = json.loads(actor.ask("/session")[1])["csrf"]
    actor.cookie = ""
    actor.enter(Role.ACT)
    assert act(actor, other, verb="ack", train="tr11", key="hang/tr11")[0] == 403


@pytest.mark.parametrize(
    "header", [{"Origin": "https://evil.example.org"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}]
)
def test_action_from_another_site_is_refused(actor: Visitor, header: dict[str, str]) -> None:
    csrf = json.loads(actor.ask("/session")[1])["csrf"]
    body = json.dumps({"verb": "ack", "train": "tr11", "key": "hang/tr11"})
    assert actor.ask("/act", method="POST", body=body, X_CSRF_Token=csrf, **header)[0] == 421


def test_ack_is_recorded_with_who(site: DashSite, actor: Visitor) -> None:
    status, result = act(actor, verb="ack", train="tr11", key="hang/tr11", reason="on it", person="ana")
    assert (status, result["done"]) == (200, True)
    acknowledged = site.app.alerting.ledger.find("hang/tr11").acknowledged
    assert acknowledged
    assert acknowledged.reason == "on it"
    assert re.fullmatch(r"ana \(\w+\) by dash", acknowledged.by)
    journal = next(site.app.site_dir.alerts.glob("journal-*.jsonl")).read_text()
    assert '"kind": "page"' in journal


def test_silence_lasts_four_hours(site: DashSite, actor: Visitor) -> None:
    assert act(actor, verb="silence", train="tr11", key="hang/tr11")[0] == 200
    silence = site.app.alerting.ledger.read().silences[0]
    assert (silence.until - silence.at).total_seconds() == pytest.approx(4 * 3600, abs=5)


def test_save_arms_the_switch(site: DashSite, actor: Visitor) -> None:
    assert act(actor, verb="save", train="tr12", reason="before noon")[0] == 200
    armed = read(site.run("tr12"), Switch.SAVE)
    assert armed
    assert "before noon" in armed.why


def test_hold_waits_for_a_confirmation(site: DashSite, actor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.actions.steer_train._age", lambda app: "its age is kept")
    status, result = act(actor, verb="hold", train="tr12")
    assert (status, result) == (200, {"done": False, "text": "would hold array 2"})
    assert site.slurm.held == []
    assert act(actor, verb="hold", train="tr12", reason="noon", confirmed=True)[1]["done"] is True
    assert site.slurm.held == ["2"]
    events = Journal(site.run("tr12"), site.app.clock).events()
    held = next(event for event in events if isinstance(event, Held))
    assert re.fullmatch(r"noon, \w+ by dash", str(held.reason))


def test_a_proposal_waits_for_a_confirmation(site: DashSite, actor: Visitor) -> None:
    assert "proposes nothing" in str(act(actor, verb="confirm", train="tr12"))
    journal = Journal(site.run("tr12"), site.app.clock)
    journal.append(AttemptFinalized(attempt="2_2.0", outcome="crashed", action="propose-hold", why="3 attempts"))
    assert act(actor, verb="confirm", train="tr12")[1] == {"done": False, "text": "would hold the queued tasks"}
    assert act(actor, verb="confirm", train="tr12", reason="yes", confirmed=True)[1]["text"] == "held 2"
    assert site.slurm.held == ["2"]


def test_release_repeats_what_the_hold_says(site: DashSite, actor: Visitor) -> None:
    assert act(actor, verb="release", train="tr12")[1]["text"] == "would release array 2"
    journal = Journal(site.run("tr12"), site.app.clock)
    reason = Reason(kind=ReasonKind.FAULT_LOOP, text="exit code 1", change=NeededChange.STORAGE)
    journal.append(AttemptStarted(attempt="2_2.0", nodes="node002"))
    journal.append(AttemptFinalized(attempt="2_2.0", outcome="crashed", action="hold-queued", why=str(reason)))
    journal.append(Held(jobs=("2",), reason=reason))
    text = "would release array 2; the hold says: before a release, repair the storage or free space"
    assert act(actor, verb="release", train="tr12")[1]["text"] == text


@pytest.mark.parametrize("number", [-1, 1.5, "5", True, 10**13])
def test_other_number_is_refused(actor: Visitor, number: object) -> None:
    status, result = act(actor, verb="rollback", train="tr11", number=number)
    assert status == 409
    assert "the request is not an instruction: number: " in str(result["error"])


def test_refused_permission_is_shown(site: DashSite, actor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotAllowed("the job is not yours", hint="ask its owner")

    monkeypatch.setattr("opsctl.dash.steering.arm_switch", refuse)
    status, result = act(actor, verb="save", train="tr12")
    assert (status, result) == (403, {"error": "the job is not yours", "hint": "ask its owner"})


@pytest.mark.parametrize(*read_cases(__file__, "other_instruction_is_refused"))
def test_other_instruction_is_refused(actor: Visitor, fields: dict[str, object]) -> None:
    status, result = act(actor, **fields)
    assert status == 409
    assert result["error"]


def test_broken_body_is_refused(actor: Visitor) -> None:
    csrf = json.loads(actor.ask("/session")[1])["csrf"]
    for body in ("{", "[" * 4000, "null", '"x"'):
        assert actor.ask("/act", method="POST", body=body, X_CSRF_Token=csrf)[0] == 409


# --- one view for all


def test_viewers_share_one_query(site: DashSite, own: Visitor) -> None:
    own.enter(Role.VIEW)
    threads = [threading.Thread(target=own.ask, args=(path,)) for path in ("/", "/?wall", "/train/tr11") * 6]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert site.slurm.calls == ["squeue", "sinfo"]


def test_no_viewer_means_no_query(site: DashSite) -> None:
    with serving(site, every_s=0.1):
        threading.Event().wait(0.5)
    assert site.slurm.calls == []


def test_unreachable_slurm_is_shown_as_unknown(site: DashSite, own: Visitor) -> None:
    site.slurm.is_away = True
    text = own.enter(Role.VIEW).ask("/")[1]
    assert "The state of Slurm is unknown." in text
    assert "unknown: Slurm did not answer" in text
    assert text.count("</i> UNKNOWN<") == 2


def test_broken_reader_leaves_the_old_view(site: DashSite, own: Visitor) -> None:
    own.enter(Role.VIEW).ask("/")
    refresher = own.server.refresher
    refresher.collect = lambda: 1 / 0  # type: ignore[assignment, return-value]  # a bug
    refresher.refresh()
    text = own.ask("/")[1]
    assert "The last refresh failed." in text
    assert "tr12" in text


def test_unready_page_loads_itself_again(own: Visitor) -> None:
    own.server.refresher.collect = lambda: 1 / 0  # type: ignore[assignment, return-value]  # a bug
    status, text, answer = own.enter(Role.VIEW).ask("/")
    assert (status, answer.getheader("Refresh")) == (503, "5")
    assert "the first view is not ready: ZeroDivisionError" in text


def test_page_is_compressed_for_browsers(site: DashSite) -> None:
    with serving(site) as visitor:
        _, text, plain = visitor.enter(Role.VIEW).ask("/")
        connection = HTTPConnection("127.0.0.1", visitor.port, timeout=250)
        headers = {"Host": "localhost", "Cookie": visitor.cookie, "Accept-Encoding": "gzip"}
        connection.request("GET", "/", headers=headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
    assert (plain.getheader("Content-Encoding"), answer.getheader("Content-Encoding")) == (None, "gzip")
    assert gzip.decompress(data).decode() == text
    assert len(data) < len(text) / 3
    assert answer.getheader("Content-Security-Policy") == plain.getheader("Content-Security-Policy")


def test_events_name_the_version_and_the_age(site: DashSite) -> None:
    with serving(site, every_s=0.2) as visitor:
        connection = HTTPConnection("127.0.0.1", visitor.enter(Role.VIEW).port, timeout=250)
        connection.request("GET", "/events", headers={"Host": "localhost", "Cookie": visitor.cookie})
        answer = connection.getresponse()
        news = []
        while len({item["version"] for item in news}) < 3:
            line = answer.fp.readline()
            if line.startswith(b"data: "):
                news.append(json.loads(line[6:]))
        connection.close()
    assert [item["age"] for item in news][-1] < 5
    assert site.slurm.calls.count("squeue") == site.slurm.calls.count("sinfo")


def test_log_is_searched(visitor: Visitor) -> None:
    visitor.enter(Role.VIEW)
    assert "iteration 299/" in visitor.ask("/train/tr11/log")[1]
    found = visitor.ask("/train/tr11/log?q=ITERATION+17/")[1]
    assert found.count("<p") == 1
    assert "1 line with" in found


def test_first_error_is_found(site: DashSite, own: Visitor) -> None:
    with site.run("tr11").main_log.open("a") as log:
        log.write("[node001:3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\nlater\n")
    text = own.enter(Role.VIEW).ask("/train/tr11/log?first-error=1")[1]
    assert 'class="hit"' in text
    assert "node001:3" in text


@pytest.mark.parametrize("path", ["/train/nothing", "/train/..%2Ftr11", "/train/tr11%2F..%2Ftr12", "/nothing"])
def test_other_path_is_not_found(visitor: Visitor, path: str) -> None:
    assert visitor.enter(Role.VIEW).ask(path)[0] == 404


def test_prefix_is_removed_and_written_into_links(site: DashSite) -> None:
    with serving(site, prefix="/node/login1/8400") as visitor:
        visitor.enter(Role.VIEW)
        status, text, _ = visitor.ask("/node/login1/8400/train/tr11")
        assert status == 200
        assert 'href="/node/login1/8400/"' in text
        assert visitor.ask("/train/tr11")[0] == 200  # a proxy that strips the prefix
