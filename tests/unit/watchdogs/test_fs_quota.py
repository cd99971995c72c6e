"""Space, inodes, quotas and forecasts: judgements of given figures, and measurements of real file systems."""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from opsctl.base.errors import ConfigError
from opsctl.base.findings import Finding, Severity
from opsctl.base.units import format_size, parse_size
from opsctl.host.system import SystemRunner
from opsctl.settings.loader import SiteSettings, parse
from opsctl.settings.watch import Filesystem
from opsctl.telemetry import disk_usage
from opsctl.telemetry.disk_usage import MeasurementFailed, Space
from opsctl.watchdogs.fs_quota import FilesystemObservation, FsQuota, Growth, measure_observed
from tests.support.watch_context import T0, Bench

TIB = 1 << 40
Minutes = Callable[[float], timedelta]


def judge(space: Space | None, *, now: datetime = T0, **fields: Any) -> tuple[Severity, str]:
    limits = {name: fields.pop(name) for name in list(fields) if name in Filesystem.model_fields}
    filesystem = Filesystem(name="scratch", path="/scratch", **limits)
    [finding] = FsQuota().judge(FilesystemObservation(filesystem=filesystem, space=space, **fields), now)
    return finding.severity, finding.summary.removeprefix("scratch (/scratch): ")


def growth(size: int = 0, inodes: int = 0, *, replaces: bool = False) -> Growth:
    return Growth(train="gpt", size=size, inodes=inodes, every_s=3 * 3600, newest=T0, replaces=replaces)


@pytest.mark.parametrize(
    ("percent", "severity"),
    [(84.99, "ok"), (85, "warning"), (94.9, "warning"), (95, "critical"), (101, "critical")],
)
def test_bytes_and_inodes_have_the_same_limits(percent: float, severity: str) -> None:
    assert judge(Space(used=int(percent * 1000), limit=100_000))[0] == severity
    assert judge(Space(inodes_used=int(percent * 1000), inodes_limit=100_000))[0] == severity
    assert judge(Space(percent=percent))[0] == severity


def test_summary_has_figures_and_limit() -> None:
    share = "87.5 % of the space used (1.75 TiB of 2 TiB); warning at 85 %"
    assert judge(Space(used=int(1.75 * TIB), limit=2 * TIB)) == (Severity.WARNING, share)


def test_reliable_percent_lowers_the_limit() -> None:
    share = "97.5 % of the space used (78 TiB of 100 TiB, of which 80 % are reliable); critical at 95 %"
    assert judge(Space(used=78 * TIB, limit=100 * TIB), reliable_percent=80) == (Severity.CRITICAL, share)


def test_free_space_may_be_required_in_bytes() -> None:
    limits = {"warning_percent": 99, "critical_percent": 99}
    severity, text = judge(Space(used=900 * TIB, limit=990 * TIB), **limits, free=100 * TIB)
    assert (severity, text.endswith("90 TiB left, needs 100 TiB")) == (Severity.CRITICAL, True)


def test_checkpoints_fill_the_disk_in_a_day() -> None:
    size = int(2.3 * TIB)
    severity, text = judge(Space(used=80 * TIB, limit=100 * TIB), trains=(growth(size),))
    assert (severity, text) == (Severity.WARNING, "out of space in 26 h at 18.4 TiB a day")
    assert judge(Space(used=84 * TIB, limit=100 * TIB), trains=(growth(size), growth(size)))[0] is Severity.CRITICAL


def test_inodes_run_out_too() -> None:
    space = Space(used=1, limit=100 * TIB, inodes_used=2_000_000, inodes_limit=3_000_000)
    severity, text = judge(space, trains=(growth(1, 100_000),))
    assert (severity, text) == (Severity.WARNING, "out of inodes in 30 h at 800,000 a day")


def test_train_that_prunes_fills_nothing() -> None:
    assert judge(Space(used=80 * TIB, limit=100 * TIB), trains=(growth(3 * TIB, replaces=True),))[0] is Severity.OK


def test_observed_rate_counts_if_larger() -> None:
    text = judge(Space(used=80 * TIB, limit=100 * TIB), observed_rate=TIB / 3600)[1]
    assert text == "out of space in 20 h at 24 TiB a day"


def test_rate_needs_six_hours() -> None:
    assert measure_observed([[0, 0], [3600, 100]]) is None
    assert measure_observed([[0, 0], [36000, 7200]]) == 0.2
    assert measure_observed([[0, 100], [36000, 50]]) is None


def test_old_figure_is_unknown_unless_it_is_bad(minutes: Minutes) -> None:
    severity, text = judge(Space(used=1, limit=9, at=T0 - minutes(90)))
    assert (severity, text) == (Severity.UNKNOWN, "scratch: the figures are of 2026-01-04 23:30 UTC, 1.5 h ago")
    assert judge(Space(used=9, limit=9, at=T0 - minutes(90)))[0] is Severity.CRITICAL


def test_unchanged_figures_are_stale_during_writes(minutes: Minutes) -> None:
    severity, text = judge(Space(used=1, limit=9), unmoved_since=T0 - minutes(90))
    assert severity is Severity.UNKNOWN
    assert text.endswith("have not moved for 1.5 h, though checkpoints were written")


def test_missing_figure_is_unknown() -> None:
    assert judge(None, problem="quota: not found") == (Severity.UNKNOWN, "scratch: quota: not found")
    assert judge(Space(used=3))[0] is Severity.UNKNOWN


# --- measuring


def test_statvfs_agrees_with_df(tmp_path: Path) -> None:
    statvfs = disk_usage.read_statvfs(tmp_path)
    argv = ("df", "-B1", "--output=used,avail", "--", str(tmp_path))
    used, free = map(int, SystemRunner().run(argv, timeout=250).out.split()[-2:])
    assert statvfs.limit is not None and statvfs.used is not None
    assert abs(statvfs.limit - used - free) + abs(statvfs.used - used) < 0.01 * statvfs.limit


IDRQUOTA = """WORK: 4.2T / 5.0T (84.00%)
INODE: 461k / 500k (92.30%)"""
PATTERN = r"\((?P<percent>[\d.]+)%\)(?s:.*)\((?P<inodes_percent>[\d.]+)%\)"


def run_quota(text: str, pattern: str, tmp_path: Path) -> Space:
    command = (sys.executable, "-c", f"print({text!r})")
    filesystem = Filesystem(name="work", path="/work", by="command", command=command, pattern=pattern)
    return disk_usage.read(filesystem, SystemRunner(), keep=tmp_path, now=T0)


def test_quota_command_with_percentages(tmp_path: Path) -> None:
    assert run_quota(IDRQUOTA, PATTERN, tmp_path) == Space(percent=84.0, inodes_percent=92.3)


def test_quota_command_with_sizes_and_time(tmp_path: Path) -> None:
    pattern = r"(?P<used>\S+) of (?P<limit>\S+), files (?P<inodes_used>\d+)/(?P<inodes_limit>\d+) at (?P<at>\S+)"
    assert run_quota("4.5T of 5TiB, files 461/500 at 2026-01-05T00:50:00+00:00", pattern, tmp_path) == Space(
        used=int(4.5 * TIB),
        limit=5 * TIB,
        inodes_used=461,
        inodes_limit=500,
        at=datetime(2026, 1, 5, 0, 50, tzinfo=UTC),
    )


@pytest.mark.parametrize("text", ["", "quota: server not responding", "WORK: lots (many%) (all%)"])
def test_unknown_quota_output_fails(tmp_path: Path, text: str) -> None:
    with pytest.raises(MeasurementFailed, match="the pattern finds nothing in"):
        run_quota(text, PATTERN, tmp_path)


def test_missing_or_failing_quota_command_is_unknown(bench: Bench) -> None:
    table = {"name": "work", "path": "/", "by": "command", "pattern": "(?P<percent>.*)"}
    missing = Filesystem(**table, command=("no-such-quota",))
    assert bench.judge("fs_quota", missing).summary == "work: no-such-quota: is not on PATH"
    failing = Filesystem(**table, command=("sh", "-c", "echo who are you >&2; exit 3"))
    assert bench.judge("fs_quota", failing).summary == "work: sh failed (3): who are you"


def measure(bench: Bench, filesystem: Filesystem) -> Finding:
    """Return the finding after the background du has measured, under the real clock."""
    bench.clock.time = datetime.now(UTC)
    path = disk_usage.measure(
        filesystem.path,
        keep=bench.root / ".site/watch/fs_quota",
        name=filesystem.name,
        now=bench.clock.time,
        every=timedelta(days=1),
    )
    until = time.monotonic() + 250  # du is niced and is slow on a busy machine
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    bench.clock.time = datetime.now(UTC)
    return bench.judge("fs_quota", filesystem)


def test_du_measures_in_the_background_by_owner(bench: Bench) -> None:
    directory = bench.root / "space $x"
    (directory / "big").mkdir(parents=True)
    (directory / "small").mkdir()
    (directory / "big/model").write_bytes(bytes(8 << 20))
    (directory / "small/model").write_bytes(bytes(1 << 20))
    os.chown(directory / "small", 12345, -1) if os.geteuid() == 0 else None
    filesystem = Filesystem(name="project", path=str(directory), by="du", limit=10 << 20, inode_limit=100)
    assert bench.judge("fs_quota", filesystem).severity in (Severity.UNKNOWN, Severity.WARNING)  # du may have finished
    finding = measure(bench, filesystem)
    assert finding.severity is Severity.WARNING
    assert re.search(r"90\.\d % of the space used \(9[\d.]* MiB of 10 MiB\); warning at 85 %", finding.summary)
    # Only root can give a directory to a second owner. Directories take some KiB or none.
    owners = ["8 MiB, 2 inodes", "1 MiB, 2 inodes"] if os.geteuid() == 0 else ["9 MiB, 4 inodes"]
    shown = [re.search(r": (\d+)[\d.]*( MiB, \d inodes), most in", line).expand(r"\1\2") for line in finding.lines]
    assert shown == owners


def test_second_du_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "du-x.running").touch()
    before = set(psutil.Process().children())
    disk_usage.measure(str(tmp_path / "x"), keep=tmp_path, name="x", now=datetime.now(UTC), every=timedelta(days=1))
    assert set(psutil.Process().children()) <= before  # a child of another test may have ended meanwhile


# --- growth of a train


def write_checkpoints(bench: Bench, count: int, size: int = 1000, into: Path | None = None) -> None:
    """Write checkpoints one hour apart, the newest at T0."""
    for number in range(count):
        directory = (into or bench.run.checkpoints) / f"step{number}"
        directory.mkdir()
        (directory / "model").write_bytes(bytes(size))
        at = T0.timestamp() - 3600 * (count - 1 - number)
        os.utime(directory / "model", (at, at))
        os.utime(directory, (at, at))


def test_checkpoints_of_a_train_make_the_forecast(bench: Bench) -> None:
    write_checkpoints(bench, 3)
    bench.start_task()
    finding = bench.judge("fs_quota", Filesystem(name="root", path=str(bench.root)))
    assert finding.lines == ("gpt: 1000 B in 2 inodes every 1.0 h",)


def test_checkpoints_elsewhere_fill_the_disk_as_well(bench: Bench) -> None:
    elsewhere = bench.root / "elsewhere"
    elsewhere.mkdir()
    bench.progress = {"checkpoint_directories": [str(elsewhere)]}
    write_checkpoints(bench, 3, into=elsewhere)
    bench.start_task()
    finding = bench.judge("fs_quota", Filesystem(name="root", path=str(bench.root), warning_percent=1e-9))
    assert finding.lines[0] == "gpt: 1000 B in 2 inodes every 1.0 h"
    room = "Make room: opsctl checkpoint list gpt lists the checkpoints with their places; delete old ones by hand"
    assert finding.remedy == room


def test_unqueued_train_has_no_growth(bench: Bench) -> None:
    write_checkpoints(bench, 3)
    assert bench.judge("fs_quota", Filesystem(name="root", path=str(bench.root))).lines == ()


def test_train_with_keep_last_has_no_growth(bench: Bench) -> None:
    bench.run.trainer_config.write_text(json.dumps({"checkpoint": {"every": 10, "keep_last": 2}}))
    bench.start_task()
    bench.steps(1, 30)
    for step in (10, 20):
        directory = bench.run.checkpoints / f"step-{step:07d}"
        directory.mkdir()
        (directory / "COMPLETE").write_text("x")
    assert bench.judge("fs_quota", Filesystem(name="root", path=str(bench.root))).lines == ()


def test_unchanged_figures_are_stale_after_a_write(bench: Bench, minutes: Minutes) -> None:
    write_checkpoints(bench, 3)
    bench.start_task()
    same = Filesystem(name="q", path=str(bench.root), by="command", command=("echo", "7 %"), pattern=r"(?P<percent>7)")
    assert bench.judge("fs_quota", same).severity is Severity.OK
    assert bench.judge("fs_quota", same, after=minutes(90)).severity is Severity.OK
    directory = bench.run.checkpoints / "step3"
    directory.mkdir()
    (directory / "model").touch()
    at = bench.clock.now().timestamp()
    os.utime(directory / "model", (at, at))
    os.utime(directory, (at, at))
    finding = bench.judge("fs_quota", same)
    assert (finding.severity, "have not moved for 1.5 h" in finding.summary) == (Severity.UNKNOWN, True)


# --- settings


def read_problems(**table: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(SiteSettings, {"root": "/x", "filesystem": [{"name": "s", "path": "/s", **table}]}, "site.toml")
    return list(caught.value.problems)


def test_invalid_settings_are_refused() -> None:
    assert read_problems(by="du") == [
        "[filesystem] 0: by = du needs `limit` or `inode_limit`: du does not report a limit"
    ]
    assert read_problems(by="command") == ["[filesystem] 0: by = command needs `command` and `pattern`"]
    assert read_problems(pattern="(?P<usd>.)") == ["[filesystem] 0: pattern: no such group: usd"]
    assert read_problems(critical_percent=50) == ["[filesystem] 0: critical_percent is below warning_percent"]
    assert read_problems(by="du", limit="lots") == [
        "[filesystem.0] limit: 'lots' is not a size, such as 400T, 2.5GiB or a number"
    ]


@pytest.mark.parametrize(
    ("text", "size"), [("400T", 400 * TIB), ("2.5 GiB", 5 << 29), ("3000000", 3_000_000), ("1k", 1024), ("7B", 7)]
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_sizes_are_formatted_short() -> None:
    shown = [format_size(size) for size in (0, 1023, 1024, 2.3 * TIB, 5e18)]
    assert shown == ["0 B", "1023 B", "1 KiB", "2.3 TiB", "4.34 EiB"]


def test_missing_directory_is_unknown(bench: Bench) -> None:
    finding = bench.judge("fs_quota", Filesystem(name="scratch", path="/gone"))
    assert (finding.severity, finding.summary) == (Severity.UNKNOWN, "scratch: /gone: No such file or directory")
