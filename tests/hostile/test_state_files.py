"""Damaged files of the state: reported as critical and kept for a person; none counts as "there is nothing"."""

import os
import subprocess
from pathlib import Path

import pytest

from opsctl.app import App, build
from opsctl.base.errors import RunDirError
from opsctl.cron.cron_dir import CronDir, read_ledger, write_ledger
from opsctl.guard.end_record import Outcome, read_end
from opsctl.host.system import SystemClock
from opsctl.monitor.status import read_status
from opsctl.monitor.watch_cycle import Watch
from opsctl.state.events import AttemptFinalized
from opsctl.state.journal import Journal
from opsctl.state.run_dir import RunDir
from tests.hostile.conftest import Site
from tests.hostile.test_root import TRAIN, read_severities
from tests.support.cases import read_cases


def use_state() -> App:
    """Do what reads and writes every file of the state, whatever it holds."""
    app = build()
    Watch(app=app).cycle()
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
    assert read_severities()["files/site"] == "critical"
    assert str(damaged.with_suffix("")) in app.history.list_unreadable()[0]
    assert before in {entry.lstat().st_ino for entry in damaged.parent.iterdir()}
    if damaged.name == "exclusions.json":
        with pytest.raises(RunDirError, match="cannot be read"):
            app.exclusions.now()


COMMANDS = ("status", "status tr11", "doctor", "report tr11", "digest")


def damage(run: RunDir, path: Path, change: str) -> None:
    """Damage a file of a train that has finished and shows it."""
    run.config.write_text(f'name = "{run.name}"\n{TRAIN}')
    Journal(run, SystemClock()).append(
        AttemptFinalized(attempt="12_1.0", outcome="finished", action="continue", why="")
    )
    assert read_state(run) == "finished"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    subprocess.run(["bash", "-ec", change], env={**os.environ, "path": str(path)}, check=True)


def read_state(run: RunDir) -> str:
    return read_status(run, Journal(run, SystemClock()), [], SystemClock().now()).state


@pytest.mark.attack("a damaged record of a train counts as none")
@pytest.mark.parametrize(*read_cases(__file__, "changes"))
@pytest.mark.parametrize(*read_cases(__file__, "records"))
def test_damaged_record_is_named(site: Site, path: str, change: str) -> None:
    run = site.train("tr11")
    damage(run, run.path / path, change)
    assert read_severities().get("files/tr11") == "critical", read_severities()
    assert read_state(run) == "unknown"
    for words in COMMANDS:
        assert f"{path}: cannot be read" in "".join(site.opsctl(*words.split()).output.split("\n")), words


@pytest.mark.attack("a damaged line of a journal counts as none")
@pytest.mark.parametrize(*read_cases(__file__, "lines"))
def test_damaged_line_is_named(site: Site, change: str) -> None:
    run = site.train("tr11")
    [path] = run.journal.iterdir()
    damage(run, path, change)
    assert read_severities().get("files/tr11") == "critical", read_severities()
    assert read_state(run) == "unknown"
    for words in (*COMMANDS, "audit"):
        assert str(run.journal) in "".join(site.opsctl(*words.split()).output.split("\n")), words


def test_damaged_end_is_an_unknown_one(site: Site) -> None:
    end = (attempt := site.train("tr11").attempt("12_1.0")).end
    assert read_end(attempt) is None
    end.parent.mkdir(parents=True)
    end.write_text("{")
    assert read_end(attempt).outcome is Outcome.LOST
