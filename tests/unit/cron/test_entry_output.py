"""Programs that behave badly, what they print, and how much of it is kept."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.cron.entry_output import keep_output, prune, sweep
from opsctl.host.system import Bounded, run_bounded
from opsctl.state.run_dir import RunDir
from tests.support.cron_context import NOON, CronWorld


def run(script: str, *, timeout: float = 100, keep: int = 1000, grace: float = 0.2) -> Bounded:
    return run_bounded(
        ["/bin/sh", "-c", script],
        env=dict(os.environ),
        cwd=Path("/"),
        timeout=timeout,
        keep=keep,
        pulse=lambda: None,
        grace=grace,
    )


def test_a_program_that_does_not_want_to_end_is_killed() -> None:
    done = run("trap 'echo no' TERM; while :; do sleep 0.05; done", timeout=0.2)
    assert done.code is None


def test_a_program_that_closes_what_it_prints_to_is_waited_for() -> None:
    assert run("exec >&- 2>&-; sleep 0.3; exit 4").code == 4


def test_what_prints_without_end_is_ended_in_time() -> None:
    done = run("yes", timeout=0.3, keep=100)
    assert done.code is None
    assert len(done.output) < 200


def test_a_background_process_that_prints_without_end_is_not_waited_for() -> None:
    assert run("yes & exit 0").code == 0


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 1500, 2000, 5000])
def test_of_too_much_the_two_ends_are_kept(size: int) -> None:
    text = b"".join(b"%09d\n" % number for number in range(size // 10 + 1))[:size]
    done = run(f"printf %s '{text.decode()}'")
    if size <= 1000:
        assert done.output == text
    else:
        assert done.output == text[:500] + b"\n[... %d bytes left out ...]\n" % (size - 1000) + text[-500:]


def age(path: Path, **ago: float) -> None:
    at = (NOON - timedelta(**ago)).timestamp()
    os.utime(path, (at, at))


def test_nothing_printed_is_no_file(tmp_path: Path) -> None:
    assert keep_output(tmp_path, "x", NOON, b"") == ""
    assert list(tmp_path.iterdir()) == []


def test_a_files_name_is_plain_whatever_the_entry_is_called(tmp_path: Path) -> None:
    assert keep_output(tmp_path, "../../etc; rm -rf /\t" * 9, NOON, b"x") == (
        "20260302T120003-etc-rm-rf-etc-rm-rf-etc-rm-rf-etc-rm-rf-.txt"
    )


def test_old_output_goes_and_new_output_stays(tmp_path: Path) -> None:
    for days in (6.9, 7.1):
        age(tmp_path / keep_output(tmp_path, f"at {days}", NOON, b"x"), days=days)
    assert prune(tmp_path, NOON, keep=timedelta(days=7), files=10) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["20260302T120003-at-6-9.txt"]


def test_of_too_many_files_and_bytes_the_oldest_go(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(b"x" * 100)
        age(tmp_path / f"{number}", hours=number)
    prune(tmp_path, NOON, keep=timedelta(days=7), files=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4"]
    prune(tmp_path, NOON, keep=timedelta(days=7), files=5, total=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_pruning_what_is_not_there_or_not_a_file_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert prune(tmp_path, NOON, keep=timedelta(0), files=0) == 0
    assert prune(tmp_path / "nowhere", NOON, keep=timedelta(0), files=0) == 0


def test_a_tick_prunes(world: CronWorld) -> None:
    world.place.create()
    old = world.place.output / "old.txt"
    old.write_text("x")
    age(old, days=8)
    world.tick()
    assert not old.exists()


def test_sweeping_takes_what_killed_writers_left_and_nothing_else(world: CronWorld) -> None:
    world.tick()
    left, fresh = (world.place.path / name for name in (".ledger.json.abc123", ".ledger.json.def456"))
    for path in (left, fresh):
        path.write_text("x")
    age(left, days=2)
    assert sweep(world.place, NOON, world.cron.settings) == 1
    assert fresh.exists()
    assert world.place.ledger.exists()


def test_sweeping_takes_what_killed_writers_left_in_our_trains_but_not_in_checkpoints(world: CronWorld) -> None:
    world.tick()
    run = RunDir(world.path / "trains" / "gpt")
    run.create()
    run.config.write_text('name = "gpt"\n')
    saving = run.checkpoints / ".saving-step-0000010"
    saving.mkdir()
    left = [run.path / ".train.toml.abcdef_1", run.switches / ".kill.abcdef_1", run.checkpoints / f".lease.{'0' * 32}"]
    theirs = [saving / ".manifest.json.abcdef_1", run.path / ".nfs000001", run.path / ".notes"]
    for path in (*left, *theirs):
        path.write_text("x")
        age(path, days=2)
    assert sweep(world.place, NOON, world.cron.settings) == len(left)
    assert [path.exists() for path in theirs] == [True] * len(theirs)


def test_old_debug_log_is_removed(world: CronWorld) -> None:
    world.place.create()
    logs = world.place.site.logs
    logs.mkdir()
    for name, age_days in (("login1-1000.log", 1), ("login9-1000.log", 8)):
        (logs / name).write_text("a record\n")
        at = NOON.timestamp() - 86_400 * age_days
        os.utime(logs / name, (at, at))
    assert sweep(world.place, NOON, world.cron.settings) == 1
    assert [path.name for path in logs.iterdir()] == ["login1-1000.log"]
