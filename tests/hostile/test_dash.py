"""`opsctl dash` on a login node, where every user can connect to its port and listen on others."""

import os
import resource
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from opsctl.base.errors import OpsctlError, RunDirError
from opsctl.dash.log_search import find_first_error, read_log_tail, search_log
from opsctl.dash.page_access import PageAccess, Role, load_secret
from opsctl.dash.serve_pages import make_links, open_socket
from opsctl.host.system import SystemClock
from opsctl.state.journal import Journal
from tests.hostile.conftest import Site
from tests.support.cases import read_cases, read_table
from tests.support.dash_site import make_alerted_site, serving
from tests.support.hostile_users import STRANGER
from tests.support.trains import until

CONNECTIONS = 600
"""More than the server takes at the same time."""
SENT = read_table(__file__, "sent")


@pytest.mark.attack("a link to look takes the right to act from the browser that opens it")
def test_view_link_downgrades_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with serving(make_alerted_site(tmp_path), acts=True) as visitor:
        visitor.enter(Role.VIEW)
        visitor.enter(Role.ACT)
        before = visitor.cookie
        visitor.enter(Role.VIEW)
        assert visitor.cookie == before


@pytest.mark.attack("an empty or short secret, as of a full disk, makes tokens that everybody can compute")
@pytest.mark.parametrize("size", [0, 1, 31])
def test_short_secret_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "dash").mkdir()
    (tmp_path / "dash" / "secret").write_bytes(bytes(size))
    (tmp_path / "dash" / "secret").chmod(0o600)
    with pytest.raises(RunDirError):
        load_secret(tmp_path / "dash")
    assert len(load_secret(tmp_path / "dash", renew=True)) == 32


@pytest.mark.attack("a secret that others can read or replace")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602])
def test_open_secret_is_refused(tmp_path: Path, mode: int) -> None:
    load_secret(tmp_path / "dash")
    (tmp_path / "dash" / "secret").chmod(mode)
    with pytest.raises(RunDirError):
        load_secret(tmp_path / "dash")


@pytest.mark.attack("a secret by another user, or behind a link")
@pytest.mark.parametrize("by_link", [pytest.param(False, marks=pytest.mark.root), True])
def test_foreign_secret_is_refused(tmp_path: Path, *, by_link: bool) -> None:
    secret = tmp_path / "dash" / "secret"
    secret.parent.mkdir()
    known = tmp_path / "known"
    known.write_bytes(bytes(32))
    known.chmod(0o600)
    if by_link:
        secret.symlink_to(known)
    else:
        known.rename(secret)
        os.chown(secret, STRANGER.uid, -1)
    with pytest.raises(RunDirError):
        load_secret(secret.parent)


@pytest.mark.attack("a stranger listens on the same port of ::1, where localhost leads first")
def test_link_leads_to_the_socket_of_the_pages() -> None:
    access = PageAccess(secret=b"s" * 32, acts=True)
    with open_socket("127.0.0.1", 0) as pages, closing(socket.socket(socket.AF_INET6)) as thief:
        port = pages.getsockname()[1]
        try:
            thief.bind(("::1", port))
        except OSError:
            pytest.skip("no IPv6")
        thief.listen()
        links = make_links(access, port, "")
        for text in (links.view, links.act, links.ssh):
            assert "localhost" not in text
        address = links.ssh.split("-L ")[1].split()[0].split(":")[2]
        assert address == pages.getsockname()[0]


@pytest.mark.attack("a stranger takes the port before and waits for the bookmark")
def test_thief_of_the_port_is_named() -> None:
    with closing(socket.socket()) as thief:
        thief.bind(("127.0.0.1", 0))
        if os.geteuid() == 0:
            os.fchown(thief.fileno(), STRANGER.uid, -1)
        thief.listen()
        with pytest.raises(OpsctlError) as refused:
            open_socket("127.0.0.1", thief.getsockname()[1])
    is_foreign = os.geteuid() == 0
    assert (f"uid {STRANGER.uid}" in str(refused.value.hint)) is is_foreign


@pytest.mark.attack("a stranger without a token keeps all connections of the pages")
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_idle_connections_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 3 * CONNECTIONS:
        pytest.skip("too few open files are allowed")
    with serving(make_alerted_site(tmp_path)) as visitor, ExitStack() as stack:
        visitor.enter(Role.VIEW)
        for _ in range(CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", visitor.port), timeout=250)
            stack.enter_context(closing(connection)).sendall(sent.encode("latin-1"))
        until(lambda: visitor.ask("/")[0] == 200)


@pytest.mark.attack("a request of another page, or without a session, acts or shows something")
@pytest.mark.parametrize(*read_cases(__file__, "requests"))
def test_request_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str, body: str | None) -> None:
    """{act} and {view} in the head are cookies, {csrf} is the token of the session that acts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    site = make_alerted_site(tmp_path)
    with serving(site, acts=True) as visitor:
        view, act = visitor.enter(Role.VIEW).cookie, visitor.enter(Role.ACT).cookie
        csrf = visitor.server.access.csrf_token(act.partition("=")[2])
        data = (body or '{"verb": "hold", "train": "tr11"}').encode()
        lines = head.format(view=view, act=act, csrf=csrf, length=len(data), port=visitor.port).splitlines()
        with closing(socket.create_connection(("127.0.0.1", visitor.port), timeout=250)) as connection:
            connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + data)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert b"tr11" not in answer.partition(b"\r\n\r\n")[2]
        assert not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 3"))
        assert (site.slurm.held, list(site.run("tr11").switches.iterdir())) == ([], [])


SHORT_LINES = b"a\n" * (16 << 20)


@pytest.mark.attack("a log of millions of short lines takes the memory and the time of the pages")
def test_short_lines_are_cheap(site: Site) -> None:
    run = site.train()
    run.main_log.write_bytes(SHORT_LINES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(search_log(run, "a").lines) == 300
    assert find_first_error(run, Journal(run, SystemClock())).lines == ()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.attack("a line of megabytes takes the time of the pages")
def test_long_lines_are_cheap(site: Site) -> None:
    run = site.train()
    run.main_log.write_bytes((b"\x1b[31" * 10_000 + b"error \xe2\x80\xae" * 20_000 + b"\n") * 80)
    begun = time.process_time()
    assert all(len(line.text) <= 2000 for line in search_log(run, "error").lines)
    assert read_log_tail(run).lines is not None
    assert time.process_time() - begun < 5


@pytest.mark.attack("the log of a train is a link to a file of the viewer")
def test_log_is_never_read_through_a_link(site: Site, tmp_path: Path) -> None:
    run = site.train()
    (tmp_path / "private").write_text("password\n")
    run.main_log.unlink()
    run.main_log.symlink_to(tmp_path / "private")
    with pytest.raises(OpsctlError):
        read_log_tail(run)


@pytest.mark.attack("a forged token or cookie of the pages")
@pytest.mark.parametrize("text", ["", ".", "act.9999999999.00.", "\udc80", "é" * 200, "act." + "9" * 5000 + ".x.y"])
def test_forged_session_is_refused(text: str) -> None:
    access = PageAccess(secret=b"s" * 32, acts=True)
    now = SystemClock().now()
    assert access.find_role(text.encode(errors="replace").decode()) is None
    assert access.read_cookie(text.encode(errors="replace").decode(), now) is None
    view = access.make_cookie(Role.VIEW, now)
    assert access.read_cookie(view.replace("view", "act", 1), now) is None
