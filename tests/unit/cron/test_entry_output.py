"""Misbehaving programs, their output, and how much of the output is stored."""

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from opsctl.cron.entry_output import keep_output, prune, sweep
from opsctl.host.processes import ProcessId
from opsctl.host.system import Bounded, run_bounded
from opsctl.state.run_dir import RunDir
from tests.support.cron_context import NOON, CronSite


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


def test_program_that_ignores_sigterm_is_killed() -> None:
    result = run("trap 'echo no' TERM; while :; do sleep 0.05; done", timeout=0.2)
    assert result.code is None


def test_program_that_closes_its_output_is_waited_for() -> None:
    assert run("exec >&- 2>&-; sleep 0.3; exit 4").code == 4


def test_endless_output_ends_at_the_timeout() -> None:
    result = run("yes", timeout=0.3, keep=100)
    assert result.code is None
    assert len(result.output) < 200


def test_background_output_is_not_waited_for() -> None:
    assert run("yes & exit 0").code == 0


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 1500, 2000, 5000])
def test_long_output_is_cut_in_the_middle(size: int) -> None:
    text = b"".join(b"%09d\n" % number for number in range(size // 10 + 1))[:size]
    result = run(f"printf %s '{text.decode()}'")
    if size <= 1000:
        assert result.output == text
    else:
        assert result.output == text[:500] + b"\n[... %d bytes left out ...]\n" % (size - 1000) + text[-500:]


def age(path: Path, **ago: float) -> None:
    at = (NOON - timedelta(**ago)).timestamp()
    os.utime(path, (at, at))


def test_empty_output_makes_no_file(tmp_path: Path) -> None:
    assert keep_output(tmp_path, "x", NOON, b"") == ""
    assert list(tmp_path.iterdir()) == []


def test_output_file_has_a_plain_name(tmp_path: Path) -> None:
    assert keep_output(tmp_path, "../../etc; rm -rf /\t" * 9, NOON, b"x") == (
        "20260302T120003-etc-rm-rf-etc-rm-rf-etc-rm-rf-etc-rm-rf-.txt"
    )


def test_old_output_is_removed(tmp_path: Path) -> None:
    for days in (6.9, 7.1):
        age(tmp_path / keep_output(tmp_path, f"at {days}", NOON, b"x"), days=days)
    assert prune(tmp_path, NOON, keep=timedelta(days=7), files=10) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["20260302T120003-at-6-9.txt"]


def test_oldest_files_are_removed_beyond_the_limits(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(b"x" * 100)
        age(tmp_path / f"{number}", hours=number)
    prune(tmp_path, NOON, keep=timedelta(days=7), files=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4"]
    prune(tmp_path, NOON, keep=timedelta(days=7), files=5, total=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_prune_ignores_directories_and_links(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert prune(tmp_path, NOON, keep=timedelta(0), files=0) == 0
    assert prune(tmp_path / "nowhere", NOON, keep=timedelta(0), files=0) == 0


def test_tick_prunes_output(cron_site: CronSite) -> None:
    cron_site.place.create()
    old = cron_site.place.output / "old.txt"
    old.write_text("x")
    age(old, days=8)
    cron_site.tick()
    assert not old.exists()


def test_sweep_removes_stale_temporary_files(cron_site: CronSite) -> None:
    cron_site.tick()
    stale, fresh = (cron_site.place.path / name for name in (".ledger.json.abc123", ".ledger.json.def456"))
    for path in (stale, fresh):
        path.write_text("x")
    age(stale, days=2)
    assert sweep(cron_site.place, NOON, cron_site.cron.settings) == 1
    assert fresh.exists()
    assert cron_site.place.ledger.exists()


def test_sweep_spares_checkpoints_and_foreign_files(cron_site: CronSite) -> None:
    cron_site.tick()
    run = RunDir(cron_site.path / "trains" / "gpt")
    run.create()
    run.config.write_text('name = "gpt"\n')
    saving = run.checkpoints / ".saving-step-0000010"
    saving.mkdir()
    stale = [run.path / ".train.toml.abcdef_1", run.switches / ".kill.abcdef_1", run.checkpoints / f".lease.{'0' * 32}"]
    foreign = [saving / ".manifest.json.abcdef_1", run.path / ".nfs000001", run.path / ".notes"]
    for path in (*stale, *foreign):
        path.write_text("x")
        age(path, days=2)
    assert sweep(cron_site.place, NOON, cron_site.cron.settings) == len(stale)
    assert [path.exists() for path in foreign] == [True] * len(foreign)


def test_old_debug_log_is_removed(cron_site: CronSite) -> None:
    cron_site.place.create()
    logs = cron_site.place.site.logs
    logs.mkdir()
    for name, age_days in (("login1-1000.log", 1), ("login9-1000.log", 8)):
        (logs / name).write_text("a record\n")
        at = NOON.timestamp() - 86_400 * age_days
        os.utime(logs / name, (at, at))
    assert sweep(cron_site.place, NOON, cron_site.cron.settings) == 1
    assert [path.name for path in logs.iterdir()] == ["login1-1000.log"]


def is_running(pid: int) -> bool:
    return ProcessId.of(pid) is not None


def test_grandchild_in_its_own_session_ends_at_the_timeout(tmp_path: Path) -> None:
    script = f"setsid sh -c 'trap \"\" TERM; echo $$ >{tmp_path}/pid; sleep 100' & sleep 100"
    for timeout in (1, 10, 60):
        assert run(script, timeout=timeout).code is None
        if (tmp_path / "pid").exists():  # a busy machine may need longer to start it
            break
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_background_process_of_an_ended_entry_goes_on(tmp_path: Path) -> None:
    script = f"setsid sh -c 'echo $$ >{tmp_path}/pid; exec sleep 100' >/dev/null 2>&1 & "
    script += f"until [ -s {tmp_path}/pid ]; do sleep 0.05; done"
    assert run(script).code == 0
    process = ProcessId.of(int((tmp_path / "pid").read_text()))
    assert process is not None
    process.send(signal.SIGKILL)
