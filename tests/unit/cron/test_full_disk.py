"""Ticks on a disk that is full or read-only: who is to be awake stays awake, and no report is sent all day long."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta

import pytest

from opsctl.cron.run_history import EntryResult
from tests.support.cron_context import NOON, CronWorld
from tests.support.log_records import warnings

CRONTAB = "*/10 * * * * echo often >>$HERE/log; echo said\n0 12 * * * echo daily >>$HERE/log\n"


@pytest.fixture
def full(world: CronWorld) -> Iterator[CronWorld]:
    """A world whose site directory is on a file system of 64 KiB that is full, but for what is there already."""
    root = world.path / "trains"
    root.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("no mount")
    argv = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs", str(root)]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a file system")
    world.crontab(CRONTAB)
    world.clock.time -= timedelta(minutes=25)
    world.tick()
    world.clock.time = NOON
    with pytest.raises(OSError, match="No space left"), (root / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 512)
    (world.path / "log").unlink()
    yield world
    subprocess.run(["umount", "--lazy", str(root)], check=True)


def test_full_disk_runs_only_what_is_due_now(full: CronWorld, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(6):
        ran = full.tick(after=600 if full.log_lines else 0)
        assert ran
        assert {entry_run.result for entry_run in ran.values()} == {EntryResult.OK}
    assert full.log_lines.count("often") == 6
    assert full.log_lines.count("daily") == 1
    assert any("No space left on device" in text for text in warnings(caplog))
    (full.path / "trains" / "filler").unlink()
    full.tick(after=600)
    assert len(full.ledger.entries) == 2, "and it is written down again"


def test_a_disk_that_is_read_only_does_not_stop_it_either(full: CronWorld, caplog: pytest.LogCaptureFixture) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(full.path / "trains")], check=True)
    ran = full.tick()
    assert len(ran) == 2
    assert {entry_run.result for entry_run in ran.values()} == {EntryResult.OK}
    assert any("Read-only file system" in text for text in warnings(caplog))
