"""Whoever makes `<root>/.site` first must not own everybody's alerts."""

import os
from pathlib import Path

import pytest

from opsctl.app import App, build
from opsctl.base.findings import Severity
from opsctl.cli.doctor import _root
from opsctl.monitor.watch_cycle import Watch
from tests.hostile.conftest import Site
from tests.support.findings import make_finding
from tests.support.hostile_users import OWNER, STRANGER


def app_of(site: Site, more: str = "") -> App:
    path = site.root.parent / "site.toml"
    path.write_text(f'root = "{site.root}"\n{more}\n')
    return build(path)


@pytest.mark.attack("the site directory is a link to a directory of its victim")
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_site_directory_is_a_directory(site, kind, tmp_path):
    path = site.root / ".site"
    {"link": lambda: path.symlink_to(tmp_path), "pipe": lambda: os.mkfifo(path)}[kind]()
    app = app_of(site)
    assert app.site_problem == f"{path}: not a directory"
    app.alerting.ledger.record([make_finding(key="x/y", severity=Severity.CRITICAL, summary="x", is_certain=True)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack("everybody can write in the site directory")
def test_site_directory_is_its_owners(site):
    (site.root / ".site").mkdir()
    (site.root / ".site").chmod(0o777)
    assert app_of(site).site_problem.endswith(".site: mode 0777 lets others write")


class TestUsers:
    pytestmark = pytest.mark.root

    def plant(self, site: Site) -> None:
        """The stranger makes the directory first, with a link in place of the owner's journal."""

        def make() -> None:
            for name in ("alerts", "nodes", "cron"):
                (site.root / ".site" / name).mkdir(parents=True)
                os.chmod(site.root / ".site" / name, 0o777)
            target = site.root.parent / "bashrc"
            journal = f"journal-{os.uname().nodename}-{OWNER.uid}.jsonl"
            (site.root / ".site" / "alerts" / journal).symlink_to(target)

        assert STRANGER.run(make) == "None"
        (site.root.parent / "bashrc").touch()
        os.chown(site.root.parent / "bashrc", OWNER.uid, -1)
        (site.root.parent / "state").mkdir()
        os.chown(site.root.parent / "state", OWNER.uid, -1)

    @pytest.mark.attack("whoever makes the site directory first owns everybody's alerts")
    def test_strangers_site_directory_is_not_used(self, site: Site):
        self.plant(site)

        def record() -> list[str]:
            app = app_of(site)
            finding = make_finding(key="x/y", severity=Severity.CRITICAL, summary="x", is_certain=True)
            [transition] = app.alerting.ledger.record([finding])
            app.alerting.ledger.journal("sent", id=transition.id)
            return [app.site_problem, str(app.alerting.site.path)]

        (site.root.parent / "site.toml").touch()
        os.chown(site.root.parent / "site.toml", OWNER.uid, -1)
        said = OWNER.run(record)
        assert "belongs to bin, who is neither you nor `site_owner` of site.toml" in said
        assert str(site.root.parent / "state") in said
        assert (site.root.parent / "bashrc").read_text() == ""
        assert not (site.root / ".site" / "alerts" / "ledger.json").exists()

    @pytest.mark.attack("a stranger's site directory silences the watch")
    def test_watch_says_so(self, site: Site):
        self.plant(site)
        (site.root.parent / "site.toml").touch()
        os.chown(site.root.parent / "site.toml", OWNER.uid, -1)
        said = OWNER.run(lambda: Watch(app=app_of(site), names=("cron_alive",)).cycle().problems)
        assert "alerts, cron and node history are kept in your own state directory" in said

    @pytest.mark.attack("doctor does not name a stranger's site directory")
    def test_doctor_says_so(self, site: Site):
        self.plant(site)
        (site.root.parent / "site.toml").touch()
        os.chown(site.root.parent / "site.toml", OWNER.uid, -1)
        assert "belongs to bin" in OWNER.run(lambda: list(_root(app_of(site))))

    def test_named_owner_is_trusted(self, site: Site):
        self.plant(site)
        assert app_of(site, 'site_owner = "bin"').site_problem == ""

    def test_owner_of_the_root_is_trusted(self, site: Site):
        self.plant(site)
        os.chown(site.root, STRANGER.uid, -1)
        assert app_of(site).site_problem == ""


def test_missing_site_directory_is_no_problem(site):
    assert app_of(site).site_problem == ""
    assert app_of(site).site_dir.path == Path(site.root / ".site")
