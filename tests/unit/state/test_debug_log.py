"""The debug log of a site: who gets one, its size, its modes, several writers."""

import logging
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from opsctl.host import log_config
from opsctl.host.system import SystemClock
from opsctl.state import debug_log
from opsctl.state.site_dir import SiteDir

LOG = logging.getLogger("opsctl.guard.test")
WRITERS, RECORDS = 4, 300


@pytest.fixture
def site(tmp_path: Path):
    site = SiteDir.of(tmp_path / "trains")
    log_config.configure(None)
    debug_log.attach(site, SystemClock())
    yield site
    logging.getLogger("opsctl").handlers.clear()


def files(site: SiteDir) -> list[Path]:
    return sorted(site.logs.iterdir()) if site.logs.exists() else []


def test_nothing_is_written_without_a_site_directory(site, tmp_path):
    LOG.debug("look")
    assert list(tmp_path.iterdir()) == []


def test_directory_that_the_command_creates_gets_a_log(site):
    site.create()
    LOG.debug("squeue took 3 s")
    [path] = files(site)
    assert path.name == f"{os.uname().nodename}-{os.geteuid()}.log"
    assert f"DEBUG   guard     [{os.getpid()}] squeue took 3 s\n" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(site.logs.stat().st_mode) == 0o755


def test_secret_is_masked_in_the_file(site):
    site.create()
    try:
        raise OSError("https://hooks.slack.com/services/T0001/B0002/zYxWvUtSrQpOnMlKjIhG is gone")
    except OSError:
        LOG.debug("token %s", "xoxb-1234567890-abcdefghij", exc_info=True)
    text = files(site)[0].read_text()
    assert "token ***" in text
    assert "OSError: *** is gone" in text
    assert "xoxb" not in text
    assert "zYxW" not in text


def test_foreign_or_unwritable_directory_costs_the_log_only(site, capsys):
    site.create()
    site.logs.write_text("a file in the place of the directory")
    LOG.warning("the guard goes on")
    assert "the guard goes on" in capsys.readouterr().err
    assert site.logs.is_file()


@pytest.mark.root
def test_directory_of_another_user_gets_no_log(site):
    site.create()
    os.chown(site.path, 12345, 12345)
    LOG.debug("look")
    assert files(site) == []


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_planted_link_is_not_written_through(site, tmp_path, make):
    site.create()
    site.logs.mkdir()
    target = tmp_path / "target"
    target.write_text("untouched")
    make(target, site.logs / f"{os.uname().nodename}-{os.geteuid()}.log")
    LOG.debug("look")
    assert target.read_text() == "untouched"


def test_fifo_does_not_block(site):
    site.create()
    site.logs.mkdir()
    os.mkfifo(site.logs / f"{os.uname().nodename}-{os.geteuid()}.log")
    LOG.debug("look")


def write_records(path: str, writer: int) -> None:
    log_config.configure("error")
    debug_log.attach(SiteDir(Path(path)), SystemClock())
    for number in range(RECORDS):
        LOG.debug("writer %d record %d %s", writer, number, "x" * 100)


def test_several_processes_share_a_bounded_log(site, monkeypatch):
    monkeypatch.setattr(debug_log, "MAX_BYTES", 40_000)
    site.create()
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_records, args=(str(site.path), writer)) for writer in range(WRITERS)]
    for process in writers:
        process.start()
    for process in writers:
        process.join(250)
    assert [process.exitcode for process in writers] == [0] * WRITERS
    LOG.debug("the end %s", "x" * 100)
    assert [path.suffix for path in files(site)] == [".log", ".old"]
    assert max(path.stat().st_size for path in files(site)) < 2 * 40_000
    old, new = files(site)[1], files(site)[0]
    assert old.stat().st_size >= 40_000
    lines = (old.read_text() + new.read_text()).splitlines()
    assert all(line.endswith("x" * 100) and line.startswith("20") for line in lines)
    assert len(set(lines)) == len(lines)
    for writer in range(WRITERS):
        numbers = [int(line.split()[7]) for line in lines if f" writer {writer} record " in line]
        assert not numbers or numbers == list(range(numbers[0], RECORDS))


def test_log_that_cannot_be_renamed_stays_bounded(site, monkeypatch):
    monkeypatch.setattr(debug_log, "MAX_BYTES", 1_000)
    site.create()
    site.logs.mkdir()
    (site.logs / ".lease").write_text("not a holder")
    for _ in range(20):
        LOG.debug("x" * 600)
    [path] = [path for path in files(site) if path.suffix == ".log"]
    assert 1_000 < path.stat().st_size < 3_000


def test_log_that_another_process_renamed_is_not_renamed_again(site):
    site.create()
    LOG.debug("the first record after the other process renamed the full log")
    late = debug_log.DebugLog(site, SystemClock())
    late._rename_full_log()
    assert [path.suffix for path in files(site)] == [".log"]
