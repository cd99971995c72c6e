"""Damaged files of the state: reported as critical and kept for a person; none counts as "there is nothing"."""

import os
import subprocess

import pytest

from opsctl.app import App, build
from opsctl.base.errors import RunDirError
from opsctl.cron.cron_dir import CronDir, read_ledger, write_ledger
from opsctl.monitor.watch_cycle import Watch
from tests.hostile.conftest import Site
from tests.hostile.test_root import read_levels
from tests.support.cases import read_cases


def use_state() -> App:
    """Do what reads and writes every file of the state, whatever it holds."""
    app = build()
    Watch(services=app).cycle()
    write_ledger(CronDir(app.site_dir), read_ledger(CronDir(app.site_dir)))
    app.history.note_hang("n1", "tr11/12_1.0", app.clock.now(), days=1)
    return app


@pytest.mark.attack("a damaged file of the state counts as an empty one")
@pytest.mark.parametrize(*read_cases(__file__, "changes"))
@pytest.mark.parametrize(*read_cases(__file__, "files"))
def test_damaged_file_is_reported_and_kept(site: Site, path: str, change: str) -> None:
    site.train("tr11")
    use_state().exclusions.add([("n7", "Xid 79")], hours=9)
    damaged = site.root / path
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.touch()
    subprocess.run(["bash", "-ec", change], env={**os.environ, "path": str(damaged)}, check=True)
    before = damaged.lstat().st_ino
    app = [use_state() for _ in range(2)][1]
    assert read_levels()["files/site"] == "critical"
    assert str(damaged.with_suffix("")) in app.history.list_unreadable()[0]
    assert before in {entry.lstat().st_ino for entry in damaged.parent.iterdir()}
    if damaged.name == "exclusions.json":
        with pytest.raises(RunDirError, match="cannot be read"):
            app.exclusions.now()
