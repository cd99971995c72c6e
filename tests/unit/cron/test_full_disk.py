"""Ticks on a full or read-only disk: due entries run, and missed entries are not repeated at every tick."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta

import pytest

from opsctl.cron.run_history import EntryResult
from tests.support.cron_context import NOON, CronSite
from tests.support.log_records import warnings
from tests.support.mounts import mounting

pytestmark = pytest.mark.root

CRONTAB = "*/10 * * * * echo often >>$HERE/log; echo said\n0 12 * * * echo daily >>$HERE/log\n"


@pytest.fixture
def full(cron_site: CronSite) -> Iterator[CronSite]:
    """A site whose directory is on a full file system of 64 KiB."""
    root = cron_site.path / "trains"
    root.mkdir()
    with mounting(root, "size=64k,mode=755"):
        cron_site.crontab(CRONTAB)
        cron_site.clock.time -= timedelta(minutes=25)
        cron_site.tick()
        cron_site.clock.time = NOON
        with pytest.raises(OSError, match="No space left"), (root / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 512)
        (cron_site.path / "log").unlink()
        yield cron_site


def test_full_disk_runs_due_entries_once(full: CronSite, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(6):
        ran = full.tick(after=600 if full.log_lines else 0)
        assert ran
        assert {entry_run.result for entry_run in ran.values()} == {EntryResult.OK}
    assert full.log_lines.count("often") == 6
    assert full.log_lines.count("daily") == 1
    assert any("No space left on device" in text for text in warnings(caplog))
    (full.path / "trains" / "filler").unlink()
    full.tick(after=600)
    assert len(full.ledger.entries) == 2, "the ledger is written again"


def test_read_only_disk_runs_due_entries(full: CronSite, caplog: pytest.LogCaptureFixture) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(full.path / "trains")], check=True)
    ran = full.tick()
    assert len(ran) == 2
    assert {entry_run.result for entry_run in ran.values()} == {EntryResult.OK}
    assert any("Read-only file system" in text for text in warnings(caplog))
