"""`opsctl dash`: options, links, the secret, and the pages as files."""

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.base.errors import InputError, OpsctlError
from opsctl.cli import cli
from opsctl.dash.page_access import PageAccess, Role, load_secret
from opsctl.dash.serve_pages import make_links, open_socket
from tests.support.cases import read_cases
from tests.support.dash_site import DashSite


def dash(site: DashSite, *words: str) -> str:
    result = CliRunner().invoke(cli, ["dash", *words], obj=site.app, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.output


@pytest.mark.parametrize(*read_cases(__file__, "unsafe_option_is_refused"))
def test_unsafe_option_is_refused(site: DashSite, words: list[str]) -> None:
    with pytest.raises(InputError):
        dash(site, *words)


def test_secret_is_private_and_lasts(tmp_path: Path) -> None:
    secret = load_secret(tmp_path / "dash")
    assert stat.S_IMODE((tmp_path / "dash" / "secret").stat().st_mode) == 0o600
    assert load_secret(tmp_path / "dash") == secret
    assert load_secret(tmp_path / "dash", renew=True) != secret


def test_links_hold_the_token_in_the_fragment() -> None:
    links = make_links(PageAccess(secret=b"s" * 32, acts=True), 8400, "/p")
    assert links.view.startswith("http://127.0.0.1:8400/p/#token=")
    assert links.act != links.view
    assert links.ssh.startswith("ssh -N -L 127.0.0.1:8400:127.0.0.1:8400 ")
    assert make_links(PageAccess(secret=b"s" * 32, acts=False), 8400, "").act == ""


def test_taken_port_is_refused() -> None:
    with open_socket("127.0.0.1", 0) as listener, pytest.raises(OpsctlError, match="in use"):
        open_socket("127.0.0.1", listener.getsockname()[1])


def test_pages_are_written_as_files(site: DashSite, tmp_path: Path) -> None:
    place = tmp_path / "public"
    files = json.loads(dash(site, "--static", str(place), "--json"))["files"]
    assert files == ["index.html", "train-tr11.html", "train-tr12.html", "wall.html"]
    page = (place / "train-tr11.html").read_text()
    assert 'http-equiv="Content-Security-Policy"' in page
    assert 'href="index.html"' in page
    assert "log-panel" not in page.partition("<body")[2].partition("<script")[0]
    assert 'id="curves"' in page


def test_expired_cookie_is_refused(site: DashSite) -> None:
    access = PageAccess(secret=b"s" * 32, acts=True)
    now = site.app.clock.now()
    cookie = access.make_cookie(Role.ACT, now)
    assert access.read_cookie(cookie, now) is Role.ACT
    assert access.read_cookie(cookie, now.replace(year=now.year + 1)) is None
